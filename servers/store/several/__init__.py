"""Several processes on one PostgreSQL: one drives, and one at a time decides about a study."""
