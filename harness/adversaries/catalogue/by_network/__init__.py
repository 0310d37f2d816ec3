"""Attacks from the network: strangers, proxies, and requests that come late, twice, in part or not at all."""
