"""Secure summaries: what a site shares of its table, and what their sum says (docs/protocol.md 17)."""
