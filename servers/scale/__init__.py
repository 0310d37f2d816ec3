"""A server's linear passes cut into ranges, which the workers of a Ray cluster can do."""
