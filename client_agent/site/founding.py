"""The requester's part: found the federation, and add or remove sites later.

It compares by itself who may come. The first roster and every change are signed by all three and put in place at both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from client_agent.site.enrolment import Asking, Send, Together, askings_of, chain_at, keep_newest, look
from client_agent.site.enrolment_folder import Joined
from host.files import write_durably
from protocol.errors import ConfigurationError, RosterRefused, Unavailable, WrongRound
from protocol.messages.control import Party, Roster, Signed, check_signature, require_roster, sign, with_signature
from protocol.messages.roster import RosterChange
from protocol.roster.chain import Given, RosterChain, Wanted, proposed, require_extension, signed_by, signers
from protocol.roster.enrolment import Changing, Founding, NamedSite, Registrant, first_roster, require_fingerprint

_FILE: Final = "admitted.json"
_BEGIN_ANEW_S: Final = 60.0
_PAUSE_S: Final = 0.5
_ADMITTED: Final = TypeAdapter(dict[str, str])
M = TypeVar("M", Roster, RosterChange)


@dataclass(frozen=True)
class Candidate:
    """A site as both operators show it; None where one has not seen it yet. ``here``: the digest compared here."""

    name: str
    a: Registrant | None
    b: Registrant | None
    here: str | None

    @property
    def party(self) -> Party | None:
        """Its public card, if both operators show the same."""
        return self.a.party if self.a is not None and self.b is not None and self.a.party == self.b.party else None

    @property
    def lacks(self) -> tuple[str, ...]:
        """The missing steps, in words; empty when the site can be in the roster."""
        if self.a is not None and self.b is not None and self.party is None:
            return ("the two operators show different public cards: tell both by phone; do not admit it",)
        found = [
            f"operator {side}: {'not registered there' if one is None else 'not admitted there'}"
            for side, one in (("a", self.a), ("b", self.b))
            if one is None or not one.admitted
        ]
        here = self.party is not None and self.here == self.party.digest()
        return (*found, *(() if here else (f"you: moiety site admit {self.name} --fingerprint '...'",)))


def candidates(joined: Joined, together: Together) -> tuple[Candidate, ...]:
    """Everybody who registered at an operator, by name; the requester itself counts as compared.

    Raises: ConfigurationError
    """
    a, b = ({one.party.name: one for one in standing.registrants} for standing in together.standings)
    admitted = {**_read(joined.folder), joined.party.name: joined.party.digest()}
    return tuple(Candidate(name, a.get(name), b.get(name), admitted.get(name)) for name in sorted(a.keys() | b.keys()))


def admit(joined: Joined, together: Together, name: str, fingerprint: str) -> None:
    """Its fingerprint was read to the requester. Raises: ConfigurationError; then nothing was kept"""
    known = next((one for one in candidates(joined, together) if one.name == name), None)
    if known is None or known.party is None:
        why = "has not registered" if known is None else "; ".join(known.lacks)
        raise ConfigurationError(f"{name!r}: {why}; or the operators have not admitted you yet ('moiety site status')")
    require_fingerprint(fingerprint, known.party, name)
    kept = _read(joined.folder) | {name: known.party.digest()}
    write_durably(joined.folder / _FILE, json.dumps(kept, sort_keys=True).encode() + b"\n")


def found(
    joined: Joined, send: Send, without: Collection[str] = (), clock: Callable[[], float] = time.time
) -> Signed[Roster]:
    """Have the first roster signed by both operators and put in place at both; again after any failure.

    Raises: WrongRound, when somebody is not admitted everywhere; RosterRefused, when an operator knows another key;
    ConfigurationError, BadSignature, Unavailable
    """
    together = look(joined, send, clock)
    if together.roster is not None:
        return together.roster
    askings = askings_of(joined, send, clock)
    there = next((one.roster for one in together.standings if one.roster is not None), None)
    roster = _proposed(joined, together, without) if there is None else _begun(joined, there)
    signed = _signed_by_both(askings, sign(roster, joined.party.name, joined.keys.signing), _founding)
    for asking in askings:
        _put(asking, _founding(signed), "roster")
    return _taken(joined, send, clock)


def _signed_by_both(
    askings: tuple[Asking, Asking], signed: Signed[M], asked: Callable[[Signed[M]], Founding | Changing]
) -> Signed[M]:
    """Each signs before either has it in place."""
    for asking in askings:
        signature = asking.sign(asked(signed)).signature
        check_signature(signed.message, signature, asking.card.party)
        signed = with_signature(signed, signature)
    return signed


def _put(asking: Asking, signed: Founding | Changing, what: str) -> None:
    if not asking.sign(signed).in_place:
        raise RosterRefused(f"{asking.card.party.name} did not put the signed {what} in place: run this again")


def _taken(joined: Joined, send: Send, clock: Callable[[], float]) -> Signed[Roster]:
    """The roster as both servers show it once they have begun anew, for which they are away for a moment."""
    until_s = clock() + _BEGIN_ANEW_S
    while True:
        try:
            after = look(joined, send, clock)
        except Unavailable:
            if clock() >= until_s:
                raise
            time.sleep(_PAUSE_S)
            continue
        if after.roster is None:
            raise RosterRefused("the operators do not both show the roster that they signed: run this again")
        return after.roster


def _begun(joined: Joined, there: Signed[Roster]) -> Roster:
    """The roster that this requester signed and one operator has already. Raises: RosterRefused, BadSignature"""
    roster = require_roster(there)
    named = (roster.operator_a, roster.operator_b, roster.party(joined.party.name), roster.requester)
    if named != (joined.cards[0].party, joined.cards[1].party, joined.party, joined.party.name):
        raise RosterRefused("an operator has a roster in place that this requester never signed: tell both by phone")
    return roster


def _proposed(joined: Joined, together: Together, without: Collection[str]) -> Roster:
    if joined.party.name in without:
        raise ConfigurationError("option --without: the requester is in every roster")
    known = candidates(joined, together)
    if not known:
        raise WrongRound(
            "the operators show no registrations: they admit you, the requester, first ('moiety site status')"
        )
    strangers = sorted(set(without) - {one.name for one in known})
    if strangers:
        raise ConfigurationError(f"option --without: {', '.join(strangers)} did not register")
    sites = [one for one in known if one.name not in without]
    missing = [f"{one.name}: {', '.join(one.lacks)}" for one in sites if one.lacks]
    if missing:
        raise WrongRound(f"not everybody is admitted everywhere: {'; '.join(missing)}; or leave them out: --without")
    parties = [one.party for one in sites if one.party is not None]
    if len(parties) < 2:
        raise WrongRound("a federation has a site beside the requester: admit one first")
    return first_roster(joined.cards, joined.party.name, parties)


def _founding(signed: Signed[Roster]) -> Founding:
    sites = tuple(NamedSite(name=site.name, party=site.digest()) for site in signed.message.sites)
    return Founding(roster=signed.message.digest(), sites=sites, signatures=signed.signatures)


def _read(folder: Path) -> dict[str, str]:
    path = folder / _FILE
    try:
        return _ADMITTED.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError):
        raise ConfigurationError(f"{path} cannot be read: delete it, and admit everybody once more") from None


def add(
    joined: Joined, names: Sequence[str], reason: str, send: Send, clock: Callable[[], float] = time.time
) -> RosterChain:
    """Have a change signed by both operators and put in place at both that adds these sites, or gives those in the
    roster the keys that they renewed; again after any failure.

    Raises: WrongRound, when somebody is not admitted everywhere; RosterRefused, when an operator knows another key;
    ConfigurationError, BadSignature, Unavailable
    """
    together, askings, chain = _change_begun(joined, send, clock)
    known = candidates(joined, together)
    parties = {one.name: one.party for one in known}
    wanted = [name for name in names if chain.head.party(name) is None or chain.head.party(name) != parties.get(name)]
    given = tuple(_given(known, name) for name in wanted)
    return _changed(joined, askings, chain, Wanted(given=given), reason)


def remove(
    joined: Joined, names: Sequence[str], reason: str, send: Send, clock: Callable[[], float] = time.time
) -> RosterChain:
    """As ``add``, of a change that removes these sites, which both operators' people let be removed.

    Raises: ConfigurationError, for who is no site of the roster; RosterRefused, BadSignature, Unavailable
    """
    _, askings, chain = _change_begun(joined, send, clock)
    wanted = tuple(name for name in names if name not in chain.founding_keys or chain.head.party(name) is not None)
    return _changed(joined, askings, chain, Wanted(remove=wanted), reason)


def _change_begun(
    joined: Joined, send: Send, clock: Callable[[], float]
) -> tuple[Together, tuple[Asking, Asking], RosterChain]:
    together = look(joined, send, clock)
    if together.chain is None:
        raise WrongRound("the federation is not founded yet: 'moiety site found' comes first")
    askings = askings_of(joined, send, clock)
    return together, askings, _level(askings, together)


def _changed(
    joined: Joined, askings: tuple[Asking, Asking], chain: RosterChain, wanted: Wanted, reason: str
) -> RosterChain:
    """The chain with one change more, in place at both; the same where nothing is wanted."""
    if not (wanted.given or wanted.remove):
        return chain
    own = signed_by(chain, Signed[RosterChange](message=proposed(chain, wanted, reason)), joined.keys)
    signed = _signed_by_both(askings, own, partial(_changing, chain))
    longer = chain.extended_by(signed)
    for asking in askings:
        _put(asking, _changing(chain, signed), "change")
    keep_newest(joined, longer)
    return longer


def _level(askings: tuple[Asking, Asking], together: Together) -> RosterChain:
    """The chain that both have, once one that was left behind has been given what the other has in place."""
    chains = [chain_at(asking, standing) for asking, standing in zip(askings, together.standings, strict=True)]
    behind = 0 if chains[0].number < chains[1].number else 1
    ahead = require_extension(chains[1 - behind], chains[behind])
    for number in range(chains[behind].number, ahead.number):
        _put(askings[behind], _changing(ahead.up_to(number), ahead.changes[number]), "change")
    return ahead


def _changing(before: RosterChain, signed: Signed[RosterChange]) -> Changing:
    change = signed.message
    added = [site for site in change.roster.sites if before.head.party(site.name) != site]
    removed = tuple(site.name for site in before.head.sites if change.roster.party(site.name) is None)
    if not (added or removed) or any(
        before.head.party(name) != change.roster.party(name) for name in signers(before.head)
    ):
        raise ConfigurationError(
            f"change {change.number} is not of sites alone, so operators take it by a file: 'moiety roster apply' at "
            "the one that does not have it yet"
        )
    return Changing(
        number=change.number,
        change=change.digest(),
        reason=change.reason,
        sites=tuple(NamedSite(name=site.name, party=site.digest()) for site in added),
        remove=removed,
        signatures=signed.signatures,
    )


def _given(known: Sequence[Candidate], name: str) -> Given:
    one = next((one for one in known if one.name == name), None)
    if one is None:
        raise ConfigurationError(f"{name!r} did not register at the operators: it runs 'moiety site join' first")
    if one.lacks:
        raise WrongRound(f"{name} is not admitted everywhere: {', '.join(one.lacks)}")
    claims = {None if at is None else at.claim for at in (one.a, one.b)}
    claim = next(iter(claims))
    if one.party is None or claim is None or len(claims) > 1:
        raise WrongRound(f"{name} has not given its word for its keys yet: its people run 'moiety site status' once")
    return Given(one.party, claim)
