"""What single kinds of rounds do beside the loop, and rounds that no loop has: a ranking, a summary."""
