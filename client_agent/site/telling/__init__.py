"""What an agent tells the people at its site: that it is connected, what does not work, what waits for them."""
