"""Aggregation rules: what the requester does with the distances it opened (docs/protocol.md 8, 10)."""
