"""Tags: inner products with a round's secret vectors, which a sum must have as well (docs/protocol.md 15)."""
