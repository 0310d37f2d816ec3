"""The requester's part in a change of the roster that adds sites: proposed, signed by all three, in place at both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from client_agent.joining.asking import Asking, Send
from client_agent.joining.folder import Joined
from client_agent.joining.founding import Candidate, candidates
from client_agent.joining.standing import Together, askings_of, chain_at, look
from protocol.errors import ConfigurationError, RosterRefused, WrongRound
from protocol.wire.authentic import check_signature, with_signature
from protocol.wire.chain.chain import RosterChain, require_extension
from protocol.wire.chain.change import RosterChange
from protocol.wire.chain.making import Given, Wanted, proposed, signed_by
from protocol.wire.enrolment.questions import Changing, NamedSite
from protocol.wire.messages import Signed


def add(
    joined: Joined, names: Sequence[str], reason: str, send: Send, clock: Callable[[], float] = time.time
) -> RosterChain:
    """Have a change that adds these sites signed by both operators and put in place at both; again after any failure.

    Raises: WrongRound, when somebody is not admitted everywhere; RosterRefused, when an operator knows another key;
    ConfigurationError, BadSignature, Unavailable
    """
    together = look(joined, send, clock)
    if together.chain is None:
        raise WrongRound("the federation is not founded yet: 'moiety site found' comes first")
    askings = askings_of(joined, send, clock)
    chain = _level(askings, together)
    wanted = [name for name in names if chain.head.party(name) is None]
    if not wanted:
        return chain
    given = tuple(_given(candidates(joined, together), name) for name in wanted)
    change = proposed(chain, Wanted(given=given), reason)
    signed = signed_by(chain, Signed[RosterChange](message=change), joined.keys)
    for asking in askings:  # each signs before either has it in place
        signature = asking.sign(_changing(chain, signed)).signature
        check_signature(change, signature, asking.card.party)
        signed = with_signature(signed, signature)
    longer = chain.extended_by(signed)
    for asking in askings:
        _put(asking, chain, signed)
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
    added = [site for site in change.roster.sites if before.head.party(site.name) is None]
    if not added:
        raise ConfigurationError(
            f"change {change.number} adds no site, so operators take it by a file: 'moiety roster apply' at the one "
            "that does not have it yet"
        )
    return Changing(
        number=change.number,
        change=change.digest(),
        reason=change.reason,
        sites=tuple(NamedSite(name=site.name, party=site.digest()) for site in added),
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
