"""Questions of enrolment to one operator's server, on a way that need not be trusted.

The card is known by its digest, which the invitation holds; everything else is sealed to the card's key and signed. A
certificate by a CA that this machine does not know yet, or a proxy that opens TLS, is therefore no reason to stop.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

from host.network.unreachable import why_unreachable
from host.network.web_proxy import ProxyRefused, WebProxy, open_tunnel
from protocol.errors import BadSignature, ConfigurationError, MalformedMessage, MoietyError, Unavailable
from protocol.printable import printable
from protocol.wire.enrolment.card import MOST_CA_CHARACTERS, OperatorCard, parse_card
from protocol.wire.enrolment.exchange import MOST_ANSWERED_SEALED_BYTES, close_asked, open_answered
from protocol.wire.enrolment.invitation import Invitation
from protocol.wire.enrolment.questions import (
    Asked,
    Changing,
    Founded,
    Founding,
    Refused,
    Registration,
    Standing,
    StandingQuestion,
)
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Party, RosterChange, Signature, Signed
from protocol.wire.paths import CARD, ENROLMENT

_TIMEOUT_S: Final = 30.0
_USUAL_PORT: Final = 443
_MOST_CARD_BYTES: Final = 2**14 + MOST_CA_CHARACTERS
_SHOWN_CHARACTERS: Final = 300
A = TypeVar("A", Standing, Founded)
Send = Callable[[str, str, bytes, int], tuple[int, bytes]]
"""Server's address, path, body (empty: a GET), most bytes of an answer; gives status and body. Raises: Unavailable"""


@dataclass(frozen=True)
class Way:
    """Over the network, by a proxy or without."""

    proxy: WebProxy | None = None

    def __call__(self, url: str, path: str, body: bytes, most_bytes: int) -> tuple[int, bytes]:
        """Raises: Unavailable"""
        parts = urlsplit(url)
        to = (parts.hostname or "", parts.port or _USUAL_PORT)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(*to, timeout=_TIMEOUT_S, context=context)
        try:
            if self.proxy is not None:
                tunnel = open_tunnel(self.proxy, to, _TIMEOUT_S)
                tunnel.settimeout(_TIMEOUT_S)
                connection.sock = context.wrap_socket(tunnel, server_hostname=to[0])
            with closing(connection):
                connection.request("POST" if body else "GET", path, body or None, {"Accept-Encoding": "identity"})
                answer = connection.getresponse()
                return answer.status, answer.read(most_bytes + 1)
        except (OSError, http.client.HTTPException, ProxyRefused) as error:
            why = why_unreachable(error) if isinstance(error, OSError | ProxyRefused) else printable(str(error))
            raise Unavailable(f"{url}: {why}; nothing is lost: run the same command again") from None


def fetch_card(invitation: Invitation, send: Send) -> OperatorCard:
    """The card of the operator that made the invitation, and no other. Raises: ConfigurationError, Unavailable"""
    status, body = send(invitation.url, CARD, b"", _MOST_CARD_BYTES)
    if status != http.client.OK or len(body) > _MOST_CARD_BYTES:
        raise Unavailable(
            f"{invitation.url} shows no card (status {status}): is the server of {invitation.operator!r} running, and "
            "of this release?"
        )
    card = parse_card(body.decode("utf-8", "replace"), invitation.url)
    if card.digest() != invitation.card:
        raise ConfigurationError(
            f"{invitation.url} shows another card than that of the operator who made the invitation; nothing was sent: "
            "somebody answers in its place, or the operator made new keys: ask for another invitation, by phone"
        )
    return card


@dataclass(frozen=True)
class Asking:
    """One site's questions to one operator."""

    card: OperatorCard
    keys: PartyKeys
    party: Party
    send: Send
    clock: Callable[[], float] = time.time

    def register(self, secret: str) -> Standing:
        """Raises: what the operator refuses with, Unavailable"""
        return self._ask(Registration(secret=secret, party=self.party), Standing)

    def standing(self, claim: Signature | None = None) -> Standing:
        """Raises: what the operator refuses with, Unavailable"""
        return self._ask(StandingQuestion(claim=claim), Standing)

    def change(self, link: int) -> Signed[RosterChange]:
        """A link of the roster's chain, from 1, unchecked. Raises: what the operator refuses with, Unavailable"""
        found = self._ask(StandingQuestion(link=link), Standing).change
        if found is None:
            raise MalformedMessage(f"{self.card.party.name} does not show change {link} of the roster: ask again")
        return found

    def sign(self, founding: Founding | Changing) -> Founded:
        """Raises: what the operator refuses with, Unavailable"""
        return self._ask(founding, Founded)

    def _ask(self, question: Registration | StandingQuestion | Founding | Changing, kind: type[A]) -> A:
        asked = Asked(
            federation=self.card.federation,
            to=self.card.digest(),
            name=self.party.name,
            at_s=int(self.clock()),
            question=question,
        )
        sealed = close_asked(asked, self.keys, self.card)
        status, body = self.send(self.card.url, ENROLMENT, sealed, MOST_ANSWERED_SEALED_BYTES)
        if status != http.client.OK:
            said = printable(body[:_SHOWN_CHARACTERS].decode("utf-8", "replace"))
            raise Unavailable(f"{self.card.party.name} at {self.card.url} did not answer ({status}, unsigned): {said}")
        try:
            answer = open_answered(body, self.keys, asked, self.card).answer
        except (BadSignature, MalformedMessage):
            raise
        except MoietyError:
            raise Unavailable(
                f"{self.card.url} answers with what {self.card.party.name} has not sealed: somebody on the way changed "
                "it; nothing was taken from it: run the same command again"
            ) from None
        if isinstance(answer, Refused):
            raise _error(answer, self.card.party.name)
        if not isinstance(answer, kind):
            raise MalformedMessage(f"{self.card.party.name} answered another question: ask again")
        return answer


def _error(refused: Refused, operator: str) -> MoietyError:
    kinds = [kind for kind in _tree(MoietyError) if kind.__dict__.get("code") is refused.code]
    plain = [kind for kind in kinds if kind.__init__ is MoietyError.__init__]
    return (plain[-1] if plain else MalformedMessage)(f"{operator}: {refused.detail}")


def _tree(root: type[MoietyError]) -> list[type[MoietyError]]:
    return [one for kind in root.__subclasses__() for one in (kind, *_tree(kind))]
