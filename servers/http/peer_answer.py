"""The peer's answer: believed only with its signature over the request, and never more of it than was asked for.

What does not carry the signature says nothing: the peer is out of reach. An answer in a content coding is refused
unread: a few hundred kB of gzip are half a gigabyte.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx

from protocol.channel.answers import VerifiedAnswer, verify_answer
from protocol.channel.commitment import CheckedHead
from protocol.channel.envelope import ANSWER_TYPE, Correspondence, envelope_bytes, open_answer
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, PeerUnreachable, TooLarge
from protocol.parameters import require_version
from servers.http.off_loop import off_loop
from servers.server import Server

PROBLEM_BYTES: Final = 2**14
_OK: Final = 200


@dataclass(frozen=True)
class PeerRequest:
    """A request as it is sent, and what its answer is bound to."""

    request: httpx.Request
    between: Correspondence
    signature: str


@dataclass(frozen=True)
class PeerAnswer:
    """The status of an answer whose signature holds, and its body; that is the peer's once all of it was taken."""

    status: int
    pieces: AsyncIterator[bytes]


async def peer_answer(server: Server, asked: PeerRequest, response: httpx.Response, most_bytes: int) -> PeerAnswer:
    """Raises: PeerUnreachable, unless the peer signed this answer to this request; OtherVersion"""
    try:
        verified = verify_answer(
            response.status_code,
            list(response.headers.multi_items()),
            asked.signature,
            server.verify_keys[server.peer.key_id],
            server.peer.key_id,
        )
        if verified.content_type != ANSWER_TYPE:
            return PeerAnswer(_OK, _streamed(response, verified, most_bytes))
        most = envelope_bytes(max(most_bytes, PROBLEM_BYTES))
        sealed = b"".join([piece async for piece in answer_pieces(response, most)])
        status, body = await off_loop(len(sealed), partial(_opened, server, asked, sealed, verified))
    except (BadSignature, BrokenSeal, MalformedMessage, TooLarge) as refused:
        require_version("the peer", response.headers.get("moiety-version"))
        raise PeerUnreachable(
            f"the peer answered {response.status_code}, but not over its signature: {refused.detail}; something in "
            "between changes answers, or the peer did not accept the request's signature (a clock, an old roster); "
            "nothing of it was believed, it is asked again"
        ) from None
    return PeerAnswer(status, _at_once(body))


def _opened(server: Server, asked: PeerRequest, sealed: bytes, verified: VerifiedAnswer) -> tuple[int, bytes]:
    """Status and body. Raises: BadSignature, BrokenSeal, MalformedMessage, OtherVersion"""
    _require_digest(sealed, verified)
    return open_answer(sealed, server.keys.sealing, asked.between)


def _require_digest(body: bytes, verified: VerifiedAnswer) -> None:
    if not hmac.compare_digest(hashlib.sha256(body).digest(), verified.body_digest):
        raise BadSignature("the body is not the one whose digest was signed")


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _streamed(response: httpx.Response, verified: VerifiedAnswer, most_bytes: int) -> AsyncIterator[bytes]:
    """A sealed body behind a signed head; no signature is over its length. Raises: PeerUnreachable"""
    head = CheckedHead(verified.body_digest)
    try:
        async for piece in answer_pieces(response, most_bytes):
            if checked := head.feed(piece):
                yield bytes(checked)
        head.finish()
    except (BadSignature, MalformedMessage, TooLarge) as refused:
        raise PeerUnreachable(f"the peer's answer is not the one it signed: {refused.detail}") from None


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
