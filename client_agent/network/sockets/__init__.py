"""A site's connections themselves: how fast, how many bytes, and how an answer comes out of TLS."""
