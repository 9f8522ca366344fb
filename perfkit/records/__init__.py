"""What was seen: frozen records that know their units, their machine and how sure they are."""
