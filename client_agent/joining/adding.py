"""The requester's part in a change of the roster's sites: proposed, signed by all three, in place at both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from client_agent.joining.asking import Asking, Send
from client_agent.joining.folder import Joined
from client_agent.joining.founding import Candidate, candidates
from client_agent.joining.standing import Together, askings_of, chain_at, keep_newest, look
from protocol.errors import ConfigurationError, RosterRefused, WrongRound
from protocol.wire.authentic import check_signature, with_signature
from protocol.wire.chain.chain import RosterChain, require_extension, signers
from protocol.wire.chain.change import RosterChange
from protocol.wire.chain.making import Given, Wanted, proposed, signed_by
from protocol.wire.enrolment.questions import Changing, NamedSite
from protocol.wire.messages import Signed


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
    change = proposed(chain, wanted, reason)
    signed = signed_by(chain, Signed[RosterChange](message=change), joined.keys)
    for asking in askings:  # each signs before either has it in place
        signature = asking.sign(_changing(chain, signed)).signature
        check_signature(change, signature, asking.card.party)
        signed = with_signature(signed, signature)
    longer = chain.extended_by(signed)
    for asking in askings:
        _put(asking, chain, signed)
    keep_newest(joined, longer)
    return longer


def _level(askings: tuple[Asking, Asking], together: Together) -> RosterChain:
    """The chain that both have, once one that was left behind has been given what the other has in place."""
    chains = [chain_at(asking, standing) for asking, standing in zip(askings, together.standings, strict=True)]
    behind = 0 if chains[0].number < chains[1].number else 1
    ahead = require_extension(chains[1 - behind], chains[behind])
    for number in range(chains[behind].number, ahead.number):
        _put(askings[behind], ahead.up_to(number), ahead.changes[number])
    return ahead


def _put(asking: Asking, before: RosterChain, signed: Signed[RosterChange]) -> None:
    if not asking.sign(_changing(before, signed)).in_place:
        raise RosterRefused(f"{asking.card.party.name} did not put the signed change in place: run this again")


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
    """Raises: ConfigurationError, WrongRound"""
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
