"""A process's dealings with its machine, shared by servers and agents; protocol/ has none (docs/architecture.md)."""
