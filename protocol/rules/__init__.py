"""Aggregation rules: what the requester does with what it opened, and what sites do alike (docs/protocol.md 10)."""
