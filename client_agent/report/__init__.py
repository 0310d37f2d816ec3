"""A study as this site knows it, from its own state folder: what it came to, for people and for programs."""
