"""A server's answer, taken byte for byte as it came and never more of it than what was asked for can be.

A server, or a proxy that opens TLS, is not trusted with this site's memory: an answer in a content coding is refused
unread (a few hundred kB of gzip are half a gigabyte), and every body has a bound that its reader states.
"""

from __future__ import annotations

from collections.abc import Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx

from protocol.errors import MalformedMessage, TooLarge

NOTHING_BYTES: Final = 2**12
"""An answer that only says that something was taken."""
PROBLEM_BYTES: Final = 2**14


class Answer:
    """The body of one answer, not read yet."""

    def __init__(self, response: httpx.Response, server: str) -> None:
        """Raises: MalformedMessage, when the body is in a content coding"""
        coding = response.headers.get("content-encoding", "identity")
        if coding.strip().lower() != "identity":
            raise MalformedMessage(
                f"server {server!r} sent its answer in the content coding {coding[:40]!r}; only 'identity' was asked "
                "for: a proxy on the way that compresses must be told not to"
            )
        self._response = response
        self._server = server

    def pieces(self, most_bytes: int) -> Iterator[bytes]:
        """The body as it arrives. Raises: TooLarge, before the byte too many is handed on"""
        stated = self._response.headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated[:20]) > most_bytes:
            raise self._too_large(most_bytes)
        stream, taken = self._response.stream, 0
        assert isinstance(stream, httpx.SyncByteStream), "the client is not asynchronous"
        for piece in stream:
            taken += len(piece)
            if taken > most_bytes:
                raise self._too_large(most_bytes)
            yield piece

    def whole(self, most_bytes: int) -> bytes:
        """All of the body. Raises: TooLarge"""
        return b"".join(self.pieces(most_bytes))

    def _too_large(self, most_bytes: int) -> TooLarge:
        return TooLarge(
            f"server {self._server!r} answered with more than the {most_bytes} bytes that the answer to this request "
            "can have; nothing of it was used: ask its operator, or whoever runs a proxy on the way"
        )


def no_cookies() -> CookieJar:
    """A jar that stays empty: what a server would have the agent keep is not kept."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
