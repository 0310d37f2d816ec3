"""What the processes of one server know and tell of each other, where a server is several."""
