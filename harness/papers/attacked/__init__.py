"""Pages about attacks: what sums give away, and what poisoners reach."""
