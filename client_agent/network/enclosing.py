"""Requests as they leave: signed and in an envelope, or in a session; and what their answers must belong to."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal

from client_agent.network.answer import Asked, AskedInSession
from client_agent.network.body import Body
from client_agent.network.sessions import HeldSession
from host.randomness import Randomness
from protocol.channel import session as in_session
from protocol.channel.commitment import head_digest
from protocol.channel.envelope import SEALED_TYPE, Correspondence, EnclosedRequest, close_request
from protocol.channel.signing import DigestField, sign_request
from protocol.messages import paths
from protocol.messages.control import Party
from protocol.roster.keyfile import PartyKeys

_NONCE_BYTES: Final = 18
_NO_COMPRESSION: Final = ("Accept-Encoding", "identity")
Method = Literal["GET", "POST", "PUT"]


def _forgets(_: bytes) -> None:
    """Nothing is deflated against answers outside sessions."""


@dataclass(frozen=True)
class Closed:
    """One request: where it goes, its headers and content, and what its answer must belong to."""

    url: str
    headers: list[tuple[str, str]]
    content: Iterator[bytes]
    asked: Asked
    follows: bool
    """Some of the body is behind what is sealed, where others can reach it."""
    session: HeldSession | None = None
    keep: Callable[[bytes], None] = _forgets
    """Takes an answer against which the next one from this address can be deflated."""


class Enclosing:
    """Closes one site's requests to one server; nothing is closed twice alike."""

    def __init__(self, keys: PartyKeys, randomness: Randomness, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._randomness = randomness
        self._clock = clock

    def closed(self, to: Party, method: Method, path: str, body: Body, session: HeldSession | None = None) -> Closed:
        """A request to the server ``to``, which has an address; in its session where there is one."""
        enclosed = body.beginning()
        asked = EnclosedRequest(
            method=method,
            target=path,
            body_digest=body.digest.hex(),
            digest_field=body.digest_field,
            enclosed_bytes=len(enclosed),
            body_bytes=body.length,
        )
        keep: Callable[[bytes], None] = _forgets
        if session is None:
            front, headers, stated = self._in_envelope(to, asked, enclosed)
        else:
            counter = session.next_counter()
            front, headers, stated = self._in_session(to, session, asked, enclosed, counter)
            if method == "GET":
                keep = partial(session.keep, _without_query(path), counter)
        length = ("Content-Length", str(len(front) + body.length - len(enclosed)))
        content = chain([front], body.pieces(len(enclosed)))
        follows = body.length > len(enclosed)
        return Closed(_address(to), [_NO_COMPRESSION, *headers, length], content, stated, follows, session, keep)

    def _in_envelope(
        self, to: Party, request: EnclosedRequest, enclosed: bytes
    ) -> tuple[bytes, list[tuple[str, str]], Asked]:
        nonce = base64.urlsafe_b64encode(self._randomness.bytes(_NONCE_BYTES, "request nonce")).decode()
        between = Correspondence(self._keys.key_id, to.key_id, nonce)
        envelope = close_request(request, enclosed, to.sealing, between)
        signature = sign_request(
            "POST",
            _address(to),
            head_digest(envelope),
            self._keys.signing,
            self._keys.key_id,
            created=int(self._clock()),
            nonce=nonce,
            digest_field=DigestField.SEALED_HEAD,
        )
        stated = Asked(to, self._keys.sealing, between, dict(signature)["Signature"])
        return envelope, [*signature, ("Content-Type", SEALED_TYPE)], stated

    def _in_session(
        self, to: Party, session: HeldSession, request: EnclosedRequest, enclosed: bytes, counter: int
    ) -> tuple[bytes, list[tuple[str, str]], Asked]:
        back, earlier = 0, b""
        if request.method == "GET":
            back, earlier = session.earlier(_without_query(request.target), counter)
        now = int(self._clock())
        closed = in_session.close_request(session.keys, session.name, counter, now, request, enclosed, back)
        head = in_session.read_head(closed[: in_session.HEAD_BYTES])
        between = Correspondence(self._keys.key_id, to.key_id, str(counter))
        stated = Asked(to, self._keys.sealing, between, "", AskedInSession(session.keys, head, earlier))
        return closed, [("Content-Type", in_session.SESSION_TYPE)], stated


def _without_query(path: str) -> str:
    return path.partition("?")[0]


def _address(to: Party) -> str:
    return (to.url or "") + paths.SEALED
