"""A round with tags in which one party does otherwise: what others then see, serve and open (docs/protocol.md 15)."""
