"""A record's views: text, HTML and small pictures. Nothing here measures."""
