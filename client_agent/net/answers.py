"""A server's answer: believed only with its signature over the request, and never more of it than can have been asked.

A proxy that opens TLS is not trusted with this site's decisions: what does not carry the server's signature over this
very request, a problem or an old answer too, says nothing, and the request is sent again later. Neither proxy nor
server is trusted with this site's memory: an answer in a content coding is refused unread (a few hundred kB of gzip
are half a gigabyte), and every body has a bound that its reader states.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

import httpx

from protocol.channel.commitment import CheckedHead
from protocol.channel.envelope import ANSWER_TYPE, SEALED_TYPE, Correspondence, envelope_bytes, open_answer
from protocol.channel.keys import SealingKey
from protocol.channel.session import (
    LENGTH_BYTES,
    SESSION_TYPE,
    SessionHead,
    SessionKeys,
    answer_length,
    most_sealed_bytes,
)
from protocol.channel.session import open_answer as open_session_answer
from protocol.channel.signing import DigestField, VerifiedAnswer, verify_answer
from protocol.errors import BadSignature, BrokenSeal, ErrorCode, MalformedMessage, OtherVersion, Unavailable
from protocol.messages.control import Party
from protocol.parameters import require_version

NOTHING_BYTES: Final = 2**12
"""An answer that only says that something was taken."""
PROBLEM_BYTES: Final = 2**14
_PATIENCE_S: Final = 120.0
_LEAST_BYTES_PER_S: Final = 2**10
"""An answer of which less comes, after the first minutes, is one that somebody holds back."""
_SHOWN_CHARACTERS: Final = 300
_OK: Final = 200


class UnsignedAnswer(Unavailable):
    """The answer is not verifiably the server's answer to this request: nothing is known about it."""


class LongAnswer(UnsignedAnswer):
    """More came than the answer can have. No signature is over a length, so that this proves nothing either."""


class SlowAnswer(UnsignedAnswer):
    """It comes so slowly that a server or somebody between may be holding this site up: it is asked for again."""


class SessionOver(UnsignedAnswer):
    """The server, or somebody who speaks for it, knows nothing of the session: the request goes in an envelope."""


@dataclass(frozen=True)
class AskedInSession:
    """The session's keys, the request's head, and the answer that it named as one that is held here; b"" for none."""

    keys: SessionKeys
    head: SessionHead
    earlier: bytes


@dataclass(frozen=True)
class Asked:
    """The request that an answer must belong to, by its signature or by the session and the counter."""

    server: Party
    key: SealingKey
    between: Correspondence
    signature: str
    session: AskedInSession | None = None


class Answer:
    """One answer whose signature holds; ``status`` and an enclosed body are known, another one is not read yet."""

    def __init__(
        self, response: httpx.Response, asked: Asked, most_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """``most_bytes`` is what the answer can be at most, ``clock`` says by when it must have come.

        Raises: UnsignedAnswer, LongAnswer, SlowAnswer, OtherVersion
        """
        self._response = response
        self._clock = clock
        self._began_s = clock()
        self._asked = asked
        self.status = _OK
        self._enclosed: bytes | None = None
        self._rest: Iterator[bytes] | None = None
        if asked.session is None:
            self._begin_signed(most_bytes)
        else:
            self._begin_in_session(asked.session, max(most_bytes, PROBLEM_BYTES))

    def _begin_signed(self, most_bytes: int) -> None:
        response, asked = self._response, self._asked
        try:
            self._require_identity()
            self._verified = verify_answer(
                response.status_code,
                list(response.headers.multi_items()),
                asked.signature,
                asked.server.verify_key,
                asked.server.key_id,
            )
        except (BadSignature, MalformedMessage) as refused:
            raise self._not_the_servers(refused.detail, _shown(self._told())) from None
        if self._verified.content_type == ANSWER_TYPE:
            self.status, self._enclosed = self._opened(self._verified, max(most_bytes, PROBLEM_BYTES))
        elif self._verified.content_type != SEALED_TYPE:
            raise self._not_the_servers(f"its content type is {self._verified.content_type[:60]!r}")

    def _begin_in_session(self, asked: AskedInSession, most_bytes: int) -> None:
        """Nothing is believed that the session's keys do not open, but that there is no such session any more."""
        try:
            self._require_identity()
            content_type = self._response.headers.get("content-type", "")
            if self._response.status_code != _OK or content_type != SESSION_TYPE:
                raise self._no_answer_in_session(content_type)
            rest = self._raw(LENGTH_BYTES + most_sealed_bytes(most_bytes))
            sealed = self._sealed_of_session(rest, most_bytes)
            opened = open_session_answer(asked.keys, asked.head, sealed, most_bytes, asked.earlier)
        except (BrokenSeal, MalformedMessage) as refused:
            raise self._not_the_servers(refused.detail) from None
        self.status = opened.status
        if opened.follows is None:
            self._enclosed = opened.body
            for _ in self._following(most_bytes):
                pass  # nothing is behind it; read to its end, the connection serves the next request
        else:
            self._verified = VerifiedAnswer(SEALED_TYPE, opened.digest, opened.follows)

    def _sealed_of_session(self, pieces: Iterator[bytes], most_bytes: int) -> bytes:
        """Return what the session's keys open; what came behind it, and all that comes, is for whoever reads on."""
        held, needed = bytearray(), LENGTH_BYTES
        for piece in pieces:
            held += piece
            if needed == LENGTH_BYTES and len(held) >= LENGTH_BYTES:
                needed += answer_length(bytes(held[:LENGTH_BYTES]), most_bytes)
            if needed > LENGTH_BYTES and len(held) >= needed:
                self._rest = chain([bytes(held[needed:])], pieces)
                return bytes(held[LENGTH_BYTES:needed])
        raise MalformedMessage("it is cut off")

    def _no_answer_in_session(self, content_type: str) -> Unavailable:
        told = self._told()
        try:
            over = json.loads(told).get("code") == ErrorCode.SESSION_UNKNOWN
        except (ValueError, AttributeError, RecursionError):
            over = False
        if over:
            return SessionOver(f"server {self._asked.server.name!r} does not know the session that was asked in")
        return self._not_the_servers(f"its content type is {content_type[:60]!r}", _shown(told))

    @property
    def enclosed(self) -> bytes:
        """A body that came with the head of the answer; b"" for one that follows."""
        return self._enclosed or b""

    def pieces(self, most_bytes: int) -> Iterator[bytes]:
        """The body as it arrives; it is the server's only once the last piece has been taken.

        Raises: LongAnswer, before the byte too many is handed on; UnsignedAnswer; SlowAnswer
        """
        if self._enclosed is not None:
            if len(self._enclosed) > most_bytes:
                raise self._too_large(most_bytes)
            yield self._enclosed
            return
        if self._verified.digest_field is DigestField.SEALED_HEAD:
            yield from self._of_signed_head(most_bytes)
            return
        taken = hashlib.sha256()
        for piece in self._following(most_bytes):
            taken.update(piece)
            yield piece
        self._require(taken.digest())

    def whole(self, most_bytes: int) -> bytes:
        """All of the body. Raises: LongAnswer, UnsignedAnswer"""
        return b"".join(self.pieces(most_bytes))

    def _of_signed_head(self, most_bytes: int) -> Iterator[bytes]:
        head = CheckedHead(self._verified.body_digest)
        try:
            for piece in self._following(most_bytes):
                checked = head.feed(piece)
                if checked:
                    yield bytes(checked)
            head.finish()
        except (BadSignature, MalformedMessage) as refused:
            raise self._not_the_servers(refused.detail) from None

    def _opened(self, verified: VerifiedAnswer, most_bytes: int) -> tuple[int, bytes]:
        sealed = b"".join(self._raw(envelope_bytes(most_bytes)))
        self._require(hashlib.sha256(sealed).digest())
        try:
            return open_answer(sealed, self._asked.key, self._asked.between)
        except OtherVersion:
            raise
        except (BrokenSeal, MalformedMessage) as refused:
            raise self._not_the_servers(refused.detail) from None

    def _require(self, digest: bytes) -> None:
        if not hmac.compare_digest(digest, self._verified.body_digest):
            raise self._not_the_servers("the body is not the one whose digest was signed")

    def _require_identity(self) -> None:
        coding = self._response.headers.get("content-encoding", "identity")
        if coding.strip().lower() != "identity":
            raise MalformedMessage(
                f"it is in the content coding {coding[:40]!r}; only 'identity' was asked for: a proxy on the way that "
                "compresses must be told not to"
            )

    def _following(self, most_bytes: int) -> Iterator[bytes]:
        """Yield what is sealed already, as it comes: all of the body, or all behind a session's part of it."""
        if self._rest is None:
            yield from self._raw(most_bytes)
            return
        taken = 0
        for piece in self._rest:
            taken += len(piece)
            if taken > most_bytes:
                raise self._too_large(most_bytes)
            yield piece

    def _raw(self, most_bytes: int) -> Iterator[bytes]:
        stated = self._response.headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated[:20]) > most_bytes:
            raise self._too_large(most_bytes)
        stream, taken = self._response.stream, 0
        assert isinstance(stream, httpx.SyncByteStream), "the client is not asynchronous"
        for piece in stream:
            taken += len(piece)
            if taken > most_bytes:
                raise self._too_large(most_bytes)
            self._require_speed(taken)
            yield piece

    def _require_speed(self, taken_bytes: int) -> None:
        """Every read has its own time-out, which a byte a minute never reaches. Raises: SlowAnswer"""
        since_s = self._clock() - self._began_s
        if since_s > _PATIENCE_S + taken_bytes / _LEAST_BYTES_PER_S:
            raise SlowAnswer(
                f"of an answer of server {self._asked.server.name!r} {taken_bytes} bytes came in {since_s:.0f} s: "
                "nothing of it was used, and it is asked for again; look at the line, or for a proxy on the way that "
                "holds answers back"
            )

    def _told(self) -> bytes:
        """The beginning of an answer that is not the server's, or nothing; nobody waits for one that drips."""
        response, held = self._response, b""
        stream = response.stream
        if response.is_success or "content-encoding" in response.headers:
            return b""
        assert isinstance(stream, httpx.SyncByteStream), "the client is not asynchronous"
        with suppress(SlowAnswer):
            for piece in stream:
                held += piece[: PROBLEM_BYTES - len(held)]
                if len(held) >= PROBLEM_BYTES:
                    break
                self._require_speed(len(held))
        return held

    def _not_the_servers(self, why: str, says: str = "") -> Unavailable:
        name, status = self._asked.server.name, self._response.status_code
        try:
            require_version(f"server {name!r}", self._response.headers.get("moiety-version"))
        except OtherVersion as other:
            return other
        if status == httpx.codes.UNAUTHORIZED:
            return UnsignedAnswer(
                f"server {name!r} does not accept this site's key or signature (401, unsigned{says}): was this site "
                "removed from the roster or given new keys ('moiety site status' tells, or the operator), or is a "
                "clock wrong? Nothing of it was believed, since a proxy that opens TLS could say the same; the request "
                "is sent again later"
            )
        return UnsignedAnswer(
            f"server {name!r} answered {status}, but not over its signature: {why}; a proxy that opens TLS and changes "
            f"answers, or a request whose signature it did not accept{says}. Nothing of it was believed; the request "
            "is sent again later"
        )

    def _too_large(self, most_bytes: int) -> LongAnswer:
        return LongAnswer(
            f"server {self._asked.server.name!r} answered with more than the {most_bytes} bytes that the answer to "
            "this request can have; nothing of it was used: ask its operator, or whoever runs a proxy on the way"
        )


def _shown(told: bytes) -> str:
    return f" (it says: {told.decode('utf-8', 'replace')[:_SHOWN_CHARACTERS]!a})" if told else ""
