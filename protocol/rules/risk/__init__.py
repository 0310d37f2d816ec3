"""Rules that weigh sites by an estimate of the step's squared error (docs/protocol.md 10)."""
