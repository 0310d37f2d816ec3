"""Named attacks on a federation, and experiments that attack whole studies: ``moiety attack``."""
