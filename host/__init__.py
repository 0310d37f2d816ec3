"""What a process asks of its machine, once for servers and agents; protocol/ asks nothing (docs/architecture.md)."""
