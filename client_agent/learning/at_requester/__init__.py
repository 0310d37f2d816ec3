"""What only the requester computes from its own data: the noise of its update."""
