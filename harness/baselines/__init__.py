"""What papers compare with, in plain simulation: no server and no site's agent knows these algorithms."""
