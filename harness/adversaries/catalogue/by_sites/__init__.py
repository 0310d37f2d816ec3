"""Attacks by sites: what one of them, or several together, send, claim or leave out."""
