"""A site's copy of a round's signed messages, and who deviated by them (docs/protocol.md 15)."""
