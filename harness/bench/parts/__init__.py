"""What parts of a round cost by themselves, without processes and connections."""
