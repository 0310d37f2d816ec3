"""What single kinds of rounds do beside the loop."""
