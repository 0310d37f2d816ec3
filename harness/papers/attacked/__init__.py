"""Pages about attacks on privacy: what sums give away, and what can be inferred from models."""
