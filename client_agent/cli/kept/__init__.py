"""What a site keeps for its key, as its operator sees and mends it: the memory of sums, the privacy budget."""
