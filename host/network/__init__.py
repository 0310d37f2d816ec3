"""Addresses and ways to them: proxies, the loopback, why nobody answers, whether two addresses are two hosts."""
