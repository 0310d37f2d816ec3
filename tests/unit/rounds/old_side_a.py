"""Side A's decisions as its server made them before ``protocol/rounds`` did: the reference of that
move, never to be tidied.

Transcribed branch by branch from servers/rounds/{side_a,end_round,collect}.py and servers/ckks/{rounds,release}.py as
they stood before it. Where they acted, these functions say with a tuple what they did; where they raised, these raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.errors import (
    ConflictingMessage,
    MoietyError,
    ProtocolViolation,
    RefusedMessage,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.rounds.agree import agree, shortfall
from protocol.wire.messages import (
    CollectedContribution,
    OutcomeCause,
    Purpose,
    Roster,
    RoundState,
)
from servers.store.interface import RoundRecord

Decision = tuple[Any, ...]
BOTH, POLL_S = 2, 2.0


class NotYet(Unavailable):
    pass


@dataclass(frozen=True)
class World:
    """All that side A could see. ``peer``: what B has answered: nothing yet, an error, a message, or its list."""

    roster: Roster
    now_s: float
    grace_s: float
    attempts: int
    study_ended: bool
    mine: tuple[CollectedContribution, ...]
    declined: frozenset[str]
    used: int
    peer: Any = None
    peer_complete: bool = True


def side_a(record: RoundRecord, w: World) -> Decision:
    if _settled(record):
        return ("rest",)
    if record.state is RoundState.SKIPPED or record.outcome is not None:
        return _deliver(record, w)
    if record.announcement.message.protection.plan.keyed:
        return _encrypted(record, w)
    if record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
        return _collect(record, w)
    if record.state is RoundState.LOCKED:
        return _measure(record, w)
    return _release(record, w)


def _settled(record: RoundRecord) -> bool:
    if record.state in (RoundState.SKIPPED, RoundState.RANKED):
        return record.outcome is not None and len(record.outcome.signatures) == BOTH
    return record.progress.final


def _is_complete(record: RoundRecord, w: World) -> bool:
    expected = len({*record.announcement.message.listed, w.roster.requester})
    return len(w.mine) >= expected or w.now_s >= record.closes_at_s


def _beyond_hope(record: RoundRecord, w: World) -> tuple[OutcomeCause, int, int] | None:
    announcement = record.announcement.message
    listed = frozenset(announcement.listed)
    if len(w.declined) + len(w.mine) < len(listed):
        return None
    held = {contribution.site for contribution in w.mine} & listed
    if len(held) >= announcement.least_contributors or not listed <= held | w.declined:
        return None
    return OutcomeCause.TOO_FEW_CONTRIBUTORS, len(held), announcement.least_contributors


def _collect(record: RoundRecord, w: World) -> Decision:
    if not _is_complete(record, w):
        hopeless = _beyond_hope(record, w)
        if hopeless is not None:
            return _end(RoundState.SKIPPED, *hopeless)
        return ("wait", record.closes_at_s)
    if w.peer is None:
        return ("compare",)
    if isinstance(w.peer, UnknownResource):
        if w.now_s < record.closes_at_s:
            raise NotYet("the peer does not know this round yet")
        return _end(RoundState.SKIPPED, OutcomeCause.ANNOUNCED_AT_ONE_SERVER)
    if not w.peer_complete:
        return ("look again",)
    return _lock(record, w, w.peer)


def _lock(record: RoundRecord, w: World, theirs: tuple[CollectedContribution, ...]) -> Decision:
    announcement = record.announcement.message
    agreed = agree(announcement, record.key.attempt, w.roster, w.mine, theirs)
    lacking = shortfall(agreed, announcement, w.roster.requester)
    if lacking is not None:
        return _end(RoundState.SKIPPED, lacking.cause, lacking.found, lacking.needed)
    return ("lock", agreed)


def _measure(record: RoundRecord, w: World) -> Decision:
    if w.peer is None:
        if w.used:
            return _burn(record, w, OutcomeCause.CORRELATIONS_LOST)
        if record.transcript is None and w.now_s >= record.closes_at_s + w.grace_s:
            return _end(RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME)
        if record.transcript is None:
            return ("toss",)
        if record.announcement.message.opens.queried and record.query_header is None:
            if w.study_ended:
                raise NotYet("the study has ended")
            if w.now_s >= record.closes_at_s + w.grace_s:
                return _end(RoundState.SKIPPED, OutcomeCause.QUERIES_MISSING)
            return ("wait", record.closes_at_s + w.grace_s)
        return ("multiply",)
    try:
        raise w.peer
    except Unavailable:
        if w.study_ended:
            raise NotYet("the study has ended") from None
        if w.now_s >= record.closes_at_s + w.grace_s:
            return _end(RoundState.SKIPPED, OutcomeCause.QUERIES_MISSING)
        return ("send again",)
    except (RefusedMessage, ProtocolViolation) as error:
        return _burn(record, w, OutcomeCause.PRODUCTS_REFUSED, error.code)


def _release(record: RoundRecord, w: World) -> Decision:
    if record.announcement.message.purpose is Purpose.RANKING:
        return _end(RoundState.RANKED, OutcomeCause.RANKED)
    if record.release_set is None:
        return _release_set(record, w)
    return _hand_over(record, w, "hand over")


def _release_set(record: RoundRecord, w: World) -> Decision:
    left_s = record.closes_at_s + w.grace_s - w.now_s
    if w.peer is None:
        return ("await release set", min(POLL_S, left_s))
    if left_s <= 0:
        return _end(RoundState.SKIPPED, OutcomeCause.RELEASE_SET_MISSING)
    return ("look again",)


def _hand_over(record: RoundRecord, w: World, then: str) -> Decision:
    if not isinstance(w.peer, ConflictingMessage):
        return (then,)
    if record.mask_seed is not None:
        raise ProtocolViolation(
            f"{record.key.label}: the peer took this side's release set and now names another; this side's sum may "
            "have left, so there is no second one: end the study and compare the servers' records"
        )
    return ("adopt",)


def _encrypted(record: RoundRecord, w: World) -> Decision:
    if record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
        if not _is_complete(record, w):
            hopeless = _beyond_hope(record, w)
            if hopeless is not None:
                return _end(RoundState.SKIPPED, *hopeless)
            return ("wait", record.closes_at_s)
        return ("read own",) if w.peer is None else _lock(record, w, w.mine)
    if record.state is RoundState.LOCKED:
        return _agree(record, w)
    if record.release_set is None:
        return _release_set(record, w)
    if record.sum_release is None:
        return _hand_over(record, w, "sum up")
    return _deliver_sum(record, w)


def _agree(record: RoundRecord, w: World) -> Decision:
    if w.peer is None:
        if w.now_s >= record.closes_at_s + w.grace_s:
            return _end(RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME)
        return ("countersign",)
    if isinstance(w.peer, UnknownResource):
        raise NotYet("the peer does not know this round yet")
    if w.peer != record.agreed.message:
        raise ProtocolViolation("the peer signed another set than this side's")
    return ("take",)


def _deliver_sum(record: RoundRecord, w: World) -> Decision:
    if w.peer is None:
        return ("countersign",)
    if isinstance(w.peer, UnknownResource):
        raise NotYet(w.peer.detail)
    if isinstance(w.peer, MoietyError):
        raise ProtocolViolation(
            f"{record.key.label}: the peer does not sign the sum that this side signed ({w.peer.detail}); nothing is "
            "served, and there is no other end: end the study and compare the servers' records"
        )
    if w.peer != record.signed_sum.message:
        raise ProtocolViolation(f"{record.key.label}: the peer signed another sum than this side's; nothing is served")
    return ("take",)


def _end(
    state: RoundState, cause: OutcomeCause, found: int | None = None, needed: int | None = None, code: Any = None
) -> Decision:
    return ("end", state, cause, found, needed, code)


def _burn(record: RoundRecord, w: World, cause: OutcomeCause, code: Any = None) -> Decision:
    if record.key.attempt >= w.attempts:
        return _end(RoundState.SKIPPED, OutcomeCause.ATTEMPTS_BURNT, found=record.key.attempt)
    return _end(RoundState.BURNT, cause, code=code)


def _deliver(record: RoundRecord, w: World) -> Decision:
    own = record.signed_outcome
    if w.peer is None:
        return ("countersign",)
    if isinstance(w.peer, (WrongRound, UnknownResource)):
        return _outcome_refused(record, w.peer)
    if w.peer != own.message:
        raise ProtocolViolation(
            f"{record.key.label}: the peer answers with another outcome than the one that this side asked it to "
            "sign; were it taken, a burnt attempt could go on beside a skip that both have signed: end the study "
            "and compare the servers' records"
        )
    return ("take",)


def _outcome_refused(record: RoundRecord, error: MoietyError) -> Decision:
    outcome = record.signed_outcome
    if outcome.message.outcome is RoundState.RANKED:
        raise NotYet(error.detail)
    if _measured_at_peer(record, error):
        return _end(RoundState.RANKED, OutcomeCause.OPENING_AT_ONE_SERVER)
    if outcome.message.outcome is RoundState.BURNT:
        return _end(RoundState.SKIPPED, OutcomeCause.OPENING_AT_ONE_SERVER)
    if record.state is RoundState.MEASURED and isinstance(error, WrongRound):
        raise ProtocolViolation(
            f"{record.key.label}: the peer says that it has released a sum, which it cannot without this side, "
            "and this side has signed a skip: end the study and compare the servers' records"
        )
    if record.state is not RoundState.SKIPPED:
        return ("take alone",)
    raise NotYet(error.detail)


def _measured_at_peer(record: RoundRecord, error: MoietyError) -> bool:
    ranks = record.announcement.message.purpose is Purpose.RANKING
    under_way = record.state in (RoundState.LOCKED, RoundState.MEASURED)
    return ranks and under_way and isinstance(error, WrongRound)
