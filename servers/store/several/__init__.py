"""Of several processes on one PostgreSQL: which drives, and one at a time decides about a study."""
