"""What parties send each other, encoded and decoded in one place each."""
