"""What a round costs, over real processes: ``moiety bench``."""
