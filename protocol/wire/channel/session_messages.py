"""Opening of a session: the site's offer and the server's grant (docs/protocol.md 14)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from protocol.wire.channel.sealing import open_small, seal_small, sealed_small_length
from protocol.wire.channel.session import ID_BYTES, SECRET_BYTES, SessionKeys, session_keys
from protocol.wire.keys import SEALING_PUBLIC_BYTES, SealingKey, SealingPublicKey
from protocol.wire.message import Digest, Message, Secret32, Version

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
