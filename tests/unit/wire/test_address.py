"""A server's address: a host, perhaps a port, and nothing else, so that it cannot be read in two ways."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.messages.paths import ServerUrl

ADDRESS: TypeAdapter[str] = TypeAdapter(ServerUrl)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example",
        "https://a.example:8443",
        "https://operator_a:1",
        "https://127.0.0.1:65535",
        "https://[::1]:8443",
        "https://[2001:db8::1]",
        "https://xn--klinik-4ya.example",
    ],
)
def test_addresses(url: str) -> None:
    assert ADDRESS.validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example",
        "https://",
        "https://:8443",
        "https://a.example/",
        "https://a.example/moiety",
        "https://a.example?x",
        "https://a.example#x",
        "https://user@a.example",
        "https://user:word@a.example",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:08",
        "https://a.example:",
        "https://a.example\\@b.example",
        "https://.example",
        "https://a.example ",
        "https://a.example\n",
        "https://ä.example",
        "https://[::1",
        "HTTPS://a.example",
    ],
)
def test_no_addresses(url: str) -> None:
    with pytest.raises(ValidationError, match="https://HOST or https://HOST:PORT and nothing more"):
        ADDRESS.validate_python(url)
