"""An operator's invitation of one site: a line that is copied, good for one registration until it expires.

    moiety-invitation:BASE64URL.CHECK

The check finds a line that was cut off or mistyped; it keeps nobody from writing another. What makes an invitation good
is its secret of 256 bits, of which the operator's server keeps a hash, and the digest of the operator's card, which
ties everything that follows to that operator's keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, ClassVar, Final

from pydantic import Field

from protocol.errors import ConfigurationError, MalformedMessage
from protocol.sharing import Side
from protocol.text_forms import INVISIBLE
from protocol.wire.address import ServerUrl
from protocol.wire.message import Digest, Message, PartyName, Secret32, StudyName

PREFIX: Final = "moiety-invitation:"
_CHECK_DIGITS: Final = 8
_MOST_CHARACTERS: Final = 4096


class Invitation(Message):
    """``site`` may register at ``url`` until ``expires_at_s``; ``card`` is the digest of the operator's card."""

    KIND: ClassVar[str] = "invitation"
    federation: StudyName
    side: Side
    operator: PartyName
    url: ServerUrl
    card: Digest
    site: PartyName
    requester: bool
    expires_at_s: Annotated[int, Field(ge=0)]
    secret: Secret32


def invitation_id(secret: str) -> str:
    """Return the identifier that a server keeps in place of the secret."""
    return hashlib.sha256(b"moiety/2 invitation\x00" + bytes.fromhex(secret)).hexdigest()


def invitation_line(invitation: Invitation) -> str:
    """One line, without spaces."""
    body = base64.urlsafe_b64encode(invitation.canonical()).decode().rstrip("=")
    return f"{PREFIX}{body}.{_check(body)}"


def read_invitation(line: str) -> Invitation:
    """The inverse, of a line that a mail may have broken. Raises: ConfigurationError, without repeating the line"""
    joined = "".join(one for one in line if one not in INVISIBLE)
    body, dot, check = joined.removeprefix(PREFIX).rpartition(".")
    if not joined.startswith(PREFIX) or not dot or len(joined) > _MOST_CHARACTERS:
        raise ConfigurationError(
            f"not an invitation: one is a line that begins with {PREFIX!r}, as 'moiety server invite' printed it"
        )
    if check != _check(body):
        raise ConfigurationError(
            "the invitation is not as it was made: a part is missing or was changed; copy all of the line once more"
        )
    try:
        content = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return Invitation.parse(content)
    except (binascii.Error, MalformedMessage):
        raise ConfigurationError(
            "the invitation cannot be read: it is of another release of moiety; ask the operator which one runs there"
        ) from None


def _check(body: str) -> str:
    return hashlib.sha256(PREFIX.encode() + body.encode()).hexdigest()[:_CHECK_DIGITS]
