"""Both servers and the agents of a federation in one process, on a clock of their own (docs/architecture.md)."""
