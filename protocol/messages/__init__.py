"""Messages between parties, each encoded and decoded in one place."""
