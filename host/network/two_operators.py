"""Two servers on one machine are one server: whoever runs it sees both halves of everything."""

from __future__ import annotations

from urllib.parse import urlsplit

from host.network.loopback import is_loopback
from protocol.errors import ConfigurationError


def require_apart(urls: tuple[str, str]) -> str:
    """Require two hosts for both operators' servers, or this machine alone, for a try.

    Two names of one machine are not found out here: who the operators are is for people to look at.
    Raises: ConfigurationError
    """
    hosts = [(urlsplit(url).hostname or "").lower() for url in urls]
    if all(is_loopback(host) for host in hosts):
        return "both on the loopback: for a try alone, since one machine sees both halves of everything"
    if hosts[0] == hosts[1]:
        raise ConfigurationError(
            f"both operators' servers are at {hosts[0]!r}: whoever runs that machine sees both halves of everything; "
            "two organisations that do not collude run one each (a try on one machine uses the loopback)"
        )
    return f"{hosts[0]} and {hosts[1]}"
