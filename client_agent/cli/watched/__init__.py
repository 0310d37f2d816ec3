"""A study followed to its end, and what it came to."""
