"""``moiety summarise``: a table one over the sites of a data set, plain or under the protocol (docs/protocol.md 17)."""
