"""``moiety rank``: which sites' own models do well on the requester's data, before training (docs/protocol.md 8)."""
