"""A ring of 48 bits, as a prototype: what it would cost and save, and how often lifting a sketch would err."""
