"""``moiety lab bench``: measure what a round costs, over real processes."""
