"""Which sites are not there, and why."""
