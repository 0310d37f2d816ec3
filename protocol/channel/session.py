"""Requests and answers under a session's keys: one key agreement serves many of them (docs/protocol.md 14).

A site offers a secret and a key made for the occasion, in a signed request in an envelope; the server grants a session
with a secret of its own, sealed to that key, in a signed answer. Who reads the session's requests and answers later
needs both secrets, and the second one's key was never on a disk. Bound into the keys: both parties' key ids, the whole
offer, the session's id.

    request   id | u64 counter | u64 created | u32 length | tag of these | sealed (what is asked | body | zeros) | rest
    answer    u32 length | sealed (status | what follows | body | zeros) | what follows

Sealed is with AES-GCM-SIV. A head's tag is checked before anything behind it is read. A counter serves one request, its
answer is sealed under the same counter and another key, so no answer serves a second time or another request. GCM-SIV,
because a machine that is set back to a snapshot uses a counter twice: that shows equal contents as equal, and nothing
else. Integers are big-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, get_args

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, ValidationError

from protocol.channel.encoding import AGAINST_EARLIER, DEFLATED, deflated, inflated
from protocol.channel.envelope import EnclosedRequest, padded_length
from protocol.channel.keys import SEALING_PUBLIC_BYTES, SealingKey, SealingPublicKey, require_length
from protocol.channel.message import MAX_CONTROL_BYTES, Digest, Message, Secret32, Version
from protocol.channel.sealing import open_small, seal_small, sealed_small_length
from protocol.channel.signing import DigestField
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, TooLarge

SESSION_TYPE: Final = "application/vnd.moiety.session"
ID_BYTES: Final = 16
SECRET_BYTES: Final = 32
LEAST_BYTES: Final = 160
"""The least length that the content of a request or an answer is padded to: most requests without a body take it."""
LENGTH_BYTES: Final = 4
MOST_COUNTER: Final = 2**32
"""More requests no session takes."""
WINDOW: Final = 1024
"""The most that a request may come behind the newest counter."""

_KEY_BYTES: Final = 32
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_HEAD: Final = struct.Struct(">16sQQI")
HEAD_BYTES: Final = _HEAD.size + _TAG_BYTES
_ASKED: Final = struct.Struct(">BBHHQQ")
_ANSWERED: Final = struct.Struct(">HBI")
_DIGEST_BYTES: Final = 32
_NOTHING: Final = bytes(_DIGEST_BYTES)
_OF_NO_BODY: Final = hashlib.sha256().digest()
_DOMAIN: Final = b"moiety/2 session\x00"
_ANSWER: Final = b"answer\x00"
MOST_BACK: Final = 2**16 - 1
"""The most that an answer which a site names can lie before its own request."""
_METHODS: Final[tuple[Literal["GET", "POST", "PUT"], ...]] = get_args(EnclosedRequest.model_fields["method"].annotation)
_FIELDS: Final = (DigestField.CONTENT, DigestField.SEALED, DigestField.SEALED_HEAD)


@dataclass(frozen=True)
class SessionHead:
    """The head in front of a request: session, counter, time (unix seconds), length of what is sealed.

    Said to whoever carries it.
    """

    session: bytes
    counter: int
    created: int
    sealed_bytes: int

    def bytes(self) -> bytes:
        """Without its tag."""
        return _HEAD.pack(self.session, self.counter, self.created, self.sealed_bytes)


@dataclass(frozen=True)
class SessionAnswer:
    """A status and a body; or a digest field and digest of what follows sealed already, and no body.

    ``is_text``: the body is a control message, and travels deflated where that is shorter; against ``earlier``, an
    answer that the caller has named, if there is one.
    """

    status: int
    body: bytes = b""
    follows: DigestField | None = None
    digest: bytes = _NOTHING
    is_text: bool = field(default=False, compare=False)
    earlier: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one session, the same at both ends; one key for heads, one for each direction."""

    head: bytes = field(repr=False)
    asked: AESGCMSIV = field(repr=False)
    answered: AESGCMSIV = field(repr=False)


def session_keys(
    offered: bytes, granted: bytes, *, session: bytes, caller: str, server: str, offer_digest: str
) -> SessionKeys:
    """Derive the keys from both secrets of 32 bytes; ``caller`` and ``server`` are key ids.

    Requires: both fresh; ``offer_digest`` of an offer that the caller signed and that holds ``offered``
    Raises:   MalformedMessage on a wrong length
    Source:   RFC 5869
    """
    secret = require_length("a session's secret", offered, SECRET_BYTES)
    secret += require_length("a session's secret", granted, SECRET_BYTES)
    named = require_length("a session's id", session, ID_BYTES).hex()
    info = _DOMAIN + f"{caller} {server} {offer_digest} {named}".encode()
    made = HKDF(algorithm=SHA256(), length=3 * _KEY_BYTES, salt=None, info=info).derive(secret)
    head, asked, answered = (made[start : start + _KEY_BYTES] for start in range(0, len(made), _KEY_BYTES))
    return SessionKeys(head, AESGCMSIV(asked), AESGCMSIV(answered))


# --- requests ---------------------------------------------------------------------------------------------------------


def close_request(
    keys: SessionKeys,
    session: bytes,
    counter: int,
    created: int,
    request: EnclosedRequest,
    enclosed: bytes,
    back: int = 0,
) -> bytes:
    """Seal a request with the beginning of its body, head in front.

    ``back``: the answer to the request so many counters before this one is held here; 0 for none.
    Requires: ``counter`` was never used in this session
    """
    target = request.target.encode("ascii")
    method, kept = _METHODS.index(request.method), _FIELDS.index(request.digest_field)
    digest = bytes.fromhex(request.body_digest) if request.body_bytes else b""
    fixed = _ASKED.pack(method, kept, len(target), back, request.enclosed_bytes, request.body_bytes)
    content = _padded(fixed + digest + target + enclosed)
    head = SessionHead(session, counter, created, len(content) + _TAG_BYTES).bytes()
    tagged = head + _tag(keys, head)
    return tagged + keys.asked.encrypt(_nonce(counter), content, tagged)


def read_head(tagged: bytes) -> SessionHead:
    """Read a request's head, unchecked: nothing of it counts before ``require_head``. Raises: MalformedMessage"""
    return SessionHead(*_HEAD.unpack(require_length("a session request's head", tagged, HEAD_BYTES)[: _HEAD.size]))


def require_head(keys: SessionKeys, tagged: bytes) -> None:
    """Before anything behind a head is read. Raises: BadSignature; TooLarge"""
    if not hmac.compare_digest(_tag(keys, tagged[: _HEAD.size]), tagged[_HEAD.size :]):
        raise BadSignature("the head of a request in a session is not its owner's: ask in an envelope, or open another")
    length, most = read_head(tagged).sealed_bytes, most_sealed_bytes(MAX_CONTROL_BYTES)
    if length > most:
        raise TooLarge(f"{length} sealed bytes were announced in a session, at most {most} are allowed here")


def open_request(keys: SessionKeys, tagged: bytes, sealed: bytes) -> tuple[EnclosedRequest, bytes, int]:
    """The request, what of its body is enclosed, and how many counters back an answer lies that is held; 0 for none.

    Raises: BrokenSeal, MalformedMessage
    """
    content = _opened(keys.asked, read_head(tagged).counter, sealed, tagged)
    if len(content) < _ASKED.size:
        raise MalformedMessage("a request in a session is shorter than what says what is asked")
    method, kept, target_bytes, back, enclosed_bytes, body_bytes = _ASKED.unpack(content[: _ASKED.size])
    asked = _ASKED.size + (_DIGEST_BYTES if body_bytes else 0)
    begin = asked + target_bytes
    if max(begin, begin + enclosed_bytes) > len(content) or method >= len(_METHODS) or kept >= len(_FIELDS):
        raise MalformedMessage("a request in a session says more than it holds, or asks in an unknown way")
    try:
        request = EnclosedRequest(
            method=_METHODS[method],
            target=content[asked:begin].decode("ascii"),
            body_digest=(content[_ASKED.size : asked] or _OF_NO_BODY).hex(),
            digest_field=_FIELDS[kept],
            enclosed_bytes=enclosed_bytes,
            body_bytes=body_bytes,
        )
    except (ValidationError, UnicodeDecodeError):
        raise MalformedMessage("a request in a session asks for no address") from None
    return request, content[begin : begin + enclosed_bytes], back


# --- answers ----------------------------------------------------------------------------------------------------------


def close_answer(keys: SessionKeys, head: SessionHead, answer: SessionAnswer) -> bytes:
    """The answer to the request with this head, its length in front; ``follows`` is not in it.

    Requires: there is one answer to a counter
    """
    body, kept = answer.body, 0 if answer.follows is None else 1 + _FIELDS.index(answer.follows)
    if answer.is_text:
        body, kept = deflated(body, answer.earlier)
    digest = b"" if answer.follows is None else require_length("a digest", answer.digest, _DIGEST_BYTES)
    content = _padded(_ANSWERED.pack(answer.status, kept, len(body)) + digest + body)
    sealed = keys.answered.encrypt(_nonce(head.counter), content, _asked_by(head))
    return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed


def answer_length(prefix: bytes, most_body_bytes: int) -> int:
    """Return the bytes of the answer behind its length field. Raises: TooLarge"""
    length, most = int.from_bytes(prefix, "big"), most_sealed_bytes(most_body_bytes)
    if length > most:
        raise TooLarge(f"an answer of {length} bytes was announced, at most {most} are allowed here")
    return length


def open_answer(
    keys: SessionKeys, head: SessionHead, sealed: bytes, most_body_bytes: int = MAX_CONTROL_BYTES, earlier: bytes = b""
) -> SessionAnswer:
    """``earlier``: the answer that the request has named.

    Raises: BrokenSeal, MalformedMessage; TooLarge, before a body that was deflated takes more memory than that
    """
    content = _opened(keys.answered, head.counter, sealed, _asked_by(head))
    if len(content) < _ANSWERED.size:
        raise MalformedMessage("an answer in a session is shorter than what says how it ended")
    status, kept, body_bytes = _ANSWERED.unpack(content[: _ANSWERED.size])
    follows = _FIELDS[kept - 1] if 0 < kept <= len(_FIELDS) else None
    begin = _ANSWERED.size + (_DIGEST_BYTES if follows else 0)
    if begin + body_bytes > len(content) or kept > AGAINST_EARLIER:
        raise MalformedMessage("an answer in a session says more than it holds")
    body = content[begin : begin + body_bytes]
    if kept in (DEFLATED, AGAINST_EARLIER):
        return SessionAnswer(status, inflated(body, kept, earlier, most_body_bytes))
    return SessionAnswer(status, body, follows, content[_ANSWERED.size : begin] or _NOTHING)


# --- both -------------------------------------------------------------------------------------------------------------


class CounterWindow:
    """The counters that a session has seen: each serves once, in any order within the newest ``WINDOW``."""

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0

    def take(self, counter: int) -> None:
        """Raises: BadSignature, for a counter that came before or is too far behind"""
        ahead = counter - self._newest
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & (2**WINDOW - 1) if ahead < WINDOW else 1
            self._newest = counter
            return
        mark = 1 << -ahead
        if -ahead >= WINDOW or self._seen & mark:
            raise BadSignature(
                "this request's counter came before, or is far behind: a request that is sent again takes the next one"
            )
        self._seen |= mark


def _tag(keys: SessionKeys, head: bytes) -> bytes:
    return hmac.digest(keys.head, head, "sha256")[:_TAG_BYTES]


def _nonce(counter: int) -> bytes:
    return counter.to_bytes(_NONCE_BYTES, "big")


def _asked_by(head: SessionHead) -> bytes:
    return _ANSWER + head.bytes()


def _padded(content: bytes) -> bytes:
    return content.ljust(padded_length(len(content), LEAST_BYTES), b"\0")


def most_sealed_bytes(body_bytes: int) -> int:
    """The longest that a body of so many bytes can be in, without the length in front."""
    return padded_length(_ASKED.size + 2**16 + body_bytes, LEAST_BYTES) + _TAG_BYTES


def _opened(key: AESGCMSIV, counter: int, sealed: bytes, bound_to: bytes) -> bytes:
    if len(sealed) < _TAG_BYTES:
        raise BrokenSeal(f"{len(sealed)} bytes in a session are too few to be sealed: they were cut off on their way")
    try:
        return key.decrypt(_nonce(counter), sealed, bound_to)
    except InvalidTag:
        raise BrokenSeal("what came in a session does not open: it was altered on its way, send it again") from None


_SEALED_HEX: Final = 2 * sealed_small_length(SECRET_BYTES)


class SessionOffer(Message):
    """A site's secret, and a sealing key that it made for this offer alone; it travels in an envelope."""

    KIND: ClassVar[str] = "session_offer"
    version: Version = "moiety/2"
    secret: Secret32
    key: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SEALING_PUBLIC_BYTES}}}$")]


class SessionGrant(Message):
    """The server's secret, sealed to the offer's key, under which id the session goes, and for how long."""

    KIND: ClassVar[str] = "session_grant"
    version: Version = "moiety/2"
    session: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    offer_digest: Digest
    sealed_secret: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{_SEALED_HEX}}}$", repr=False)]
    lives_s: Annotated[int, Field(ge=1, le=86400)]


def offered(secret: bytes, key: SealingKey) -> SessionOffer:
    """Requires: both fresh, for this offer alone"""
    return SessionOffer(secret=secret.hex(), key=key.public.to_bytes().hex())


def granted(
    offer: SessionOffer, secret: bytes, session: bytes, lives_s: int, *, caller: str, server: str
) -> tuple[SessionGrant, SessionKeys]:
    """The server's part: what it answers, and the keys. ``caller``, ``server``: key ids.

    Requires: ``secret`` and ``session`` fresh; ``caller`` has signed the request that held ``offer``
    Raises:   MalformedMessage, when the offer's key is none
    """
    to, digest = SealingPublicKey(bytes.fromhex(offer.key)), offer.digest()
    sealed = seal_small(secret, to, _info(digest, session))
    grant = SessionGrant(session=session.hex(), offer_digest=digest, sealed_secret=sealed.hex(), lives_s=lives_s)
    return grant, _keys(offer, secret, session, caller, server)


def accepted(offer: SessionOffer, key: SealingKey, grant: SessionGrant, *, caller: str, server: str) -> SessionKeys:
    """The site's part, with the key that it made for the offer.

    Requires: ``server`` has signed the answer that held ``grant``
    Raises:   BrokenSeal, when it was granted for another offer or under another id
    """
    session = bytes.fromhex(grant.session)
    secret = open_small(bytes.fromhex(grant.sealed_secret), key, _info(offer.digest(), session))
    return _keys(offer, secret, session, caller, server)


def _keys(offer: SessionOffer, secret: bytes, session: bytes, caller: str, server: str) -> SessionKeys:
    return session_keys(
        bytes.fromhex(offer.secret), secret, session=session, caller=caller, server=server, offer_digest=offer.digest()
    )


def _info(offer_digest: str, session: bytes) -> bytes:
    return f"session {offer_digest} {session.hex()}".encode()
