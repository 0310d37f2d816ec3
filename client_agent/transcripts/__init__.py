"""The signed messages of every round that a site keeps, and what they show (docs/protocol.md 15)."""
