"""Progress of a joined site at both operators; it takes the roster once both show it, signed by all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from client_agent.joining.asking import Asking, Send
from client_agent.joining.folder import Joined
from host.placed_files import rewrite
from host.settings import read_text
from protocol.errors import RosterRefused
from protocol.printable import printable
from protocol.wire.authentic import require_roster
from protocol.wire.chain.chain import RosterChain, require_chain, require_extension
from protocol.wire.chain.file import dump_chain, parse_chain
from protocol.wire.chain.making import claimed
from protocol.wire.enrolment.questions import Standing
from protocol.wire.messages import Roster, Signed


@dataclass(frozen=True)
class Together:
    """Both operators' answers, side a first; ``chain`` is the roster that both have, if this site is in it."""

    standings: tuple[Standing, Standing]
    chain: RosterChain | None

    @property
    def roster(self) -> Signed[Roster] | None:
        """The chain's first link."""
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
    """Raises: RosterRefused"""
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
    """Raises: RosterRefused"""
    own = chain.head.party(joined.party.name)
    if own is not None and own != joined.party:
        raise RosterRefused(
            f"the roster has another public card for {joined.party.name!r} than this site's; it was not taken: "
            "somebody put another key in its place: tell both operators and the requester by phone"
        )
