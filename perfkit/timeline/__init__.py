"""Reading traces and judging them: where a device was busy, where it waited, and for whom."""
