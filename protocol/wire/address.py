"""A server's address: a scheme, a host, perhaps a port, and nothing that could be read in two ways.

The address is part of every signed request, compared letter by letter; a path, a user name or a missing host in it
would be found out by the first site that calls, after everybody has signed.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

_HOST: Final = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])"
_ADDRESS: Final = re.compile(rf"https://{_HOST}(?::([1-9][0-9]{{0,4}}))?")
_LAST_PORT: Final = 65535


def _server_url(url: str) -> str:
    """Raises: ValueError"""
    found = _ADDRESS.fullmatch(url)
    if found is None or int(found[1] or 1) > _LAST_PORT:
        raise ValueError(
            "a server's address is https://HOST or https://HOST:PORT and nothing more: no user or password, no path or "
            "'/' behind it, names beyond ASCII in their xn-- form"
        )
    return url


ServerUrl = Annotated[
    str, AfterValidator(_server_url), WithJsonSchema({"type": "string", "pattern": f"^{_ADDRESS.pattern}$"})
]
