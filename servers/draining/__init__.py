"""A server that is to be upgraded: it takes nothing new, ends what is under way or leaves it on disk, and stops."""
