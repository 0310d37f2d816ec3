"""Work that a running server does by itself: driving rounds, deletion, draining, several processes."""
