"""Oblivious transfer between the two servers: correlations that their products consume (docs/protocol.md 7)."""
