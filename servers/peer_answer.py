"""The peer's answer, taken byte for byte as it came and never more of it than what was asked for can be.

An answer in a content coding is refused unread: a few hundred kB of gzip are half a gigabyte.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx

from protocol.errors import MalformedMessage, TooLarge

PROBLEM_BYTES: Final = 2**14


async def answer_pieces(response: httpx.Response, most_bytes: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises: MalformedMessage in a content coding; TooLarge, before it hands on a byte more"""
    coding = response.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise MalformedMessage(
            f"the peer sent its answer in the content coding {coding[:40]!r}; only 'identity' was asked for: a proxy "
            "on the way that compresses must be told not to"
        )
    stated = response.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated[:20]) > most_bytes:
        raise _too_large(most_bytes)
    stream, taken = response.stream, 0
    assert isinstance(stream, httpx.AsyncByteStream), "the client is asynchronous"
    async for piece in stream:
        taken += len(piece)
        if taken > most_bytes:
            raise _too_large(most_bytes)
        yield piece


async def problem_bytes(response: httpx.Response) -> bytes:
    """The body of an error; one that no server of ours writes explains nothing, and its status alone counts."""
    try:
        return b"".join([piece async for piece in answer_pieces(response, PROBLEM_BYTES)])
    except (MalformedMessage, TooLarge):
        return b""


def no_cookies() -> CookieJar:
    """A jar that stays empty: what the peer would have this server keep is not kept."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def _too_large(most_bytes: int) -> TooLarge:
    return TooLarge(
        f"the peer answered with more than the {most_bytes} bytes that the answer to this request can have; nothing "
        "of it was used: tell its operator"
    )
