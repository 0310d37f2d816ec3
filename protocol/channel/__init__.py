"""Keys, signatures, seals, envelopes and sessions: how a message travels (docs/protocol.md 3, 14)."""
