"""Computations of the requester alone, from its own data: the noise of its update."""
