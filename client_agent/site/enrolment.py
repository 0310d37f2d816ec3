"""A site and both operators' servers: register with two invitations, see how that stands, take the roster.

The way there need not be trusted. An operator's card is known by its digest, which the invitation holds; everything
else is sealed to the card's key and signed. A certificate by a CA that this machine does not know yet, or a proxy that
opens TLS, is therefore no reason to stop. The roster is taken once both show the same one and all have signed it.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from client_agent.site.enrolment_folder import Joined, Wanted, is_joined, make_folder, open_folder
from host.network import ProxyRefused, WebProxy, open_tunnel, require_apart, why_unreachable
from host.output_files import rewrite
from host.settings import read_text
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    MalformedMessage,
    MoietyError,
    RosterRefused,
    Unavailable,
    error_of,
)
from protocol.messages.control import Party, Roster, RosterChange, Signature, Signed, require_roster
from protocol.messages.paths import CARD, ENROLMENT
from protocol.roster.chain import RosterChain, claimed, dump_chain, parse_chain, require_chain, require_extension
from protocol.roster.enrolment import (
    MOST_ANSWERED_SEALED_BYTES,
    MOST_CA_CHARACTERS,
    Asked,
    Changing,
    Founded,
    Founding,
    Invitation,
    OperatorCard,
    Refused,
    Registration,
    Standing,
    StandingQuestion,
    close_asked,
    open_answered,
    parse_card,
)
from protocol.roster.keyfile import PartyKeys
from protocol.text import printable

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
        return self._ask(Registration(secret=secret, party=self.party), Standing)

    def standing(self, claim: Signature | None = None) -> Standing:
        return self._ask(StandingQuestion(claim=claim), Standing)

    def change(self, link: int) -> Signed[RosterChange]:
        """A link of the roster's chain, from 1, unchecked. Raises: what the operator refuses with, Unavailable"""
        found = self._ask(StandingQuestion(link=link), Standing).change
        if found is None:
            raise MalformedMessage(f"{self.card.party.name} does not show change {link} of the roster: ask again")
        return found

    def sign(self, founding: Founding | Changing) -> Founded:
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
            raise error_of(answer.code, f"{self.card.party.name}: {answer.detail}")
        if not isinstance(answer, kind):
            raise MalformedMessage(f"{self.card.party.name} answered another question: ask again")
        return answer


@dataclass(frozen=True)
class Together:
    """Both operators' answers, side a first; ``chain`` is the roster that both have, if this site is in it."""

    standings: tuple[Standing, Standing]
    chain: RosterChain | None

    @property
    def roster(self) -> Signed[Roster] | None:
        return None if self.chain is None else self.chain.first

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The steps that both wait for, each once; empty when nothing is left to wait for."""
        found = dict.fromkeys(what for one in self.standings for what in one.waits_for)
        return tuple(found)


def look(joined: Joined, send: Send, clock: Callable[[], float] = time.time) -> Together:
    """Ask both; put the roster into the folder if both have it in place and it is the one that the cards promise. A
    site that is not in it, or has other keys than it has there, gives its word for its keys, which the change needs.

    Raises: RosterRefused, BadSignature, Unavailable, StorageFull, and what an operator refuses with
    """
    askings = askings_of(joined, send, clock)
    standings = askings[0].standing(), askings[1].standing()
    _require_one_pair(joined, standings)
    first = _common(joined, standings[0].roster, standings[1].roster)
    if first is None:
        return Together(standings, None)
    chain = newest_of_both(askings, standings)
    renews = all(one.renews for one in standings)
    if not renews:
        _require_own(joined, chain)
    _require_not_removed(joined, chain)
    if chain.head.party(joined.party.name) != joined.party:
        given = claimed(joined.keys, chain.first_digest, samples=joined.party.samples)
        return Together((askings[0].standing(given.claim), askings[1].standing(given.claim)), None)
    keep_newest(joined, chain)
    return Together(standings, chain)


def keep_newest(joined: Joined, chain: RosterChain) -> None:
    """In the folder, unless that has it already: whoever proposes a change proposes it from there.

    Raises: RosterRefused, when the folder's is no beginning of it; ConfigurationError, StorageFull
    """
    if joined.roster.exists():
        held = parse_chain(read_text(joined.roster), str(joined.roster))
        if held.is_extension_of(chain):
            return
        require_extension(chain, held)
    rewrite(joined.roster, dump_chain(chain))


def askings_of(joined: Joined, send: Send, clock: Callable[[], float]) -> tuple[Asking, Asking]:
    """Ask both operators, side a first."""
    a, b = (Asking(card, joined.keys, joined.party, send, clock) for card in joined.cards)
    return a, b


def chain_at(asking: Asking, standing: Standing) -> RosterChain:
    """All of the chain at one operator, checked. Raises: RosterRefused, BadSignature, Unavailable"""
    if standing.roster is None:
        raise RosterRefused(f"{asking.card.party.name} shows no roster")
    changes = tuple(asking.change(link) for link in range(1, standing.links))
    return require_chain(RosterChain(standing.roster, changes))


def newest_of_both(askings: tuple[Asking, Asking], standings: tuple[Standing, Standing]) -> RosterChain:
    """The chain as far as both have it; one may be a change behind. Raises: RosterRefused, for a fork; BadSignature"""
    a, b = (chain_at(asking, standing) for asking, standing in zip(askings, standings, strict=True))
    shorter, longer = sorted((a, b), key=lambda chain: chain.number)
    require_extension(longer, shorter)
    return shorter


def _require_one_pair(joined: Joined, standings: tuple[Standing, Standing]) -> None:
    """Each operator is paired with the card that the other's invitation named. Raises: RosterRefused"""
    for own, standing, other in zip(joined.cards, standings, reversed(joined.cards), strict=True):
        if standing.peer is not None and standing.peer != other:
            raise RosterRefused(
                f"{own.party.name} is paired with another card of {other.party.name} than the one that invited this "
                "site; nothing was taken: tell both operators by phone, who compare their fingerprints again"
            )


def _common(joined: Joined, first: Signed[Roster] | None, second: Signed[Roster] | None) -> Signed[Roster] | None:
    if first is None or second is None:
        return None
    if first.message != second.message:
        raise RosterRefused(
            "the two operators show different rosters; neither was taken: tell both, and the requester, by phone"
        )
    roster = require_roster(first)
    if (roster.operator_a, roster.operator_b) != tuple(card.party for card in joined.cards):
        raise RosterRefused(
            "the roster names other operators, or other keys of theirs, than the invitations did; it was not taken: "
            "compare both operators' fingerprints by phone"
        )
    return first


def _require_not_removed(joined: Joined, chain: RosterChain) -> None:
    name = joined.party.name
    if name not in chain.founding_keys or chain.head.party(name) is not None:
        return
    number, reason = next(
        (change.message.number, change.message.reason)
        for change, before in reversed(list(zip(chain.changes, chain.rosters, strict=False)))
        if before.party(name) is not None
    )
    raise RosterRefused(
        f"{name} was removed from the roster by change {number} ({printable(reason)!r}), which both operators and the "
        "requester signed: stop its agent, or ask them; a site that comes back joins under another name"
    )


def _require_own(joined: Joined, chain: RosterChain) -> None:
    own = chain.head.party(joined.party.name)
    if own is not None and own != joined.party:
        raise RosterRefused(
            f"the roster has another public card for {joined.party.name!r} than this site's; it was not taken: "
            "somebody put another key in its place: tell both operators and the requester by phone"
        )


Pair = tuple[Invitation, Invitation]


def join(pair: Pair, wanted: Wanted, folder: Path, send: Send, clock: Callable[[], float] = time.time) -> Joined:
    """Register at both operators, with keys that are made the first time and kept in ``folder``.

    Raises: ConfigurationError, BadSignature, ConflictingMessage, Unavailable; what was made before stays good for the
    next try, and a registration at one operator alone has no effect
    """
    require_pair(pair)
    pair = (pair[0], pair[1]) if pair[0].side.value < pair[1].side.value else (pair[1], pair[0])
    again = is_joined(folder)
    if not again:  # a registration that was taken is answered after the invitation's end, too
        _require_time(pair, clock())
    cards = (fetch_card(pair[0], send), fetch_card(pair[1], send))
    _require_of(pair, cards)
    joined = open_folder(folder) if again else make_folder(folder, pair[0].site, wanted, cards)
    if again and (joined.cards != cards or (joined.party.name, joined.party.samples) != (pair[0].site, wanted.samples)):
        raise ConfigurationError(
            f"option --out: {folder} was joined as {joined.party.name!r} with {joined.party.samples} training examples "
            f"at {joined.cards[0].url} and {joined.cards[1].url}; these invitations or options say otherwise: name "
            "another folder"
        )
    for invitation, card in zip(pair, cards, strict=True):
        Asking(card, joined.keys, joined.party, send, clock).register(invitation.secret)
    return joined


def require_pair(pair: Pair) -> None:
    """One invitation of each of two operators, for one site of one federation. Raises: ConfigurationError"""
    one, other = pair
    if one.side is other.side or one.operator == other.operator or one.card == other.card:
        raise ConfigurationError(
            f"both invitations are of operator {one.operator!r}, side {one.side.value!r}: a site joins with one of "
            "each of the two operators; ask the other one for its invitation"
        )
    if one.federation != other.federation:
        raise ConfigurationError(
            f"the invitations are for two federations, {one.federation!r} and {other.federation!r}: ask both operators "
            "for invitations to one"
        )
    if (one.site, one.requester) != (other.site, other.requester):
        raise ConfigurationError(
            f"the invitations are for {_whom(one)} and {_whom(other)}: ask for two with the same name and role"
        )
    require_apart((one.url, other.url))


def _whom(one: Invitation) -> str:
    return f"{one.site!r}{' as the requester' if one.requester else ''}"


def _require_time(pair: Pair, now_s: float) -> None:
    for one in pair:
        if now_s >= one.expires_at_s:
            raise BadSignature(
                f"the invitation of {one.operator!r} expired {(now_s - one.expires_at_s) / 60:.0f} minutes ago by this "
                "machine's clock: ask for another, or set the clock if it is wrong"
            )


def _require_of(pair: Pair, cards: tuple[OperatorCard, OperatorCard]) -> None:
    for one, card in zip(pair, cards, strict=True):
        if (one.federation, one.side, one.operator, one.url) != (card.federation, card.side, card.party.name, card.url):
            raise ConfigurationError(
                f"the invitation of {one.operator!r} and its card disagree: it was changed; copy it once more"
            )
