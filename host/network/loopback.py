"""Tell whether an address can only be this machine: seeds, for one, are accepted there alone."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """A host name or address; a name other than ``localhost`` is not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """As :func:`is_loopback`, for the host of a URL."""
    return is_loopback(urlsplit(url).hostname or "")
