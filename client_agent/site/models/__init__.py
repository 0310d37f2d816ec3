"""Models that a site keeps beside the shared one."""
