"""The state of a round, read from the store, and the facts that decide its next step (docs/protocol.md 4, 7, 8, 11)."""

from __future__ import annotations

from typing import Final

from protocol.errors import UnknownResource
from protocol.messages.control import RoundState
from protocol.messages.purpose import RoundStep
from protocol.rounds.side_a import Facts, FromB, Unasked
from protocol.rounds.states import (
    AtA,
    Attempt,
    AwaitingQueries,
    ChallengeSigned,
    Chosen,
    Collecting,
    Committed,
    Countersigning,
    EndAgreed,
    Ending,
    Gone,
    HalfChecked,
    HalfCommitted,
    Judged,
    Locked,
    LockSigned,
    Masked,
    Measured,
    Measuring,
    Over,
    Queried,
    RoundKey,
    SetChosen,
    SetSigned,
    Spent,
    Standing,
    SumAgreed,
    SumSigned,
    TagsWrong,
    Unchosen,
    Uncommitted,
    Undecided,
    Unlocked,
)
from servers.rounds.contributions import absent_sites, awaited_sites, collected, roster_of
from servers.rounds.sketches import queries_missing
from servers.server import Server
from servers.store.records import RoundRecord

_BOTH: Final = 2


def at_a(server: Server, record: RoundRecord) -> AtA:
    """Raises: IncompleteRecord"""
    attempt = record.begun
    if record.outcome is not None or record.over:
        return _ended(record, attempt)
    if record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
        return _collecting(server, record, attempt)
    if record.state is RoundState.LOCKED:
        return _locked(server, record, attempt)
    return _committed(record, attempt) if record.state is RoundState.COMMITTED else _measured(record, attempt)


def _ended(record: RoundRecord, attempt: Attempt) -> Ending | Over:
    if record.state is RoundState.RELEASED:
        return Over(attempt)
    outcome = record.signed_outcome
    by_both = attempt.final and len(outcome.signatures) == _BOTH
    return Over(attempt) if by_both else Ending(attempt, outcome)


def _collecting(server: Server, record: RoundRecord, attempt: Attempt) -> Collecting:
    """Asked after every contribution: reads who sent them only once everybody may have answered."""
    absent = absent_sites(server, record)
    if server.store.contributions_held(record.key) + len(absent) < len(attempt.announcement.listed):
        return Collecting(attempt, frozenset(), absent)
    return Collecting(attempt, frozenset(server.store.contributors_of(record.key)), absent)


def _locked(server: Server, record: RoundRecord, attempt: Attempt) -> AtA:
    if RoundStep.TOSS not in attempt.announcement.protection.plan.steps:
        return Countersigning(attempt, record.agreed)
    if server.store.correlations_used(record.key):
        return Spent(attempt)
    if record.transcript is None:
        return Locked(attempt, record.agreed, record.nonce)
    return AwaitingQueries(attempt) if queries_missing(record) else Measuring(attempt)


def _measured(record: RoundRecord, attempt: Attempt) -> SumSigned | Measured | Chosen | Masked:
    if record.sum_release is not None:
        return SumSigned(attempt, record.sum_release)
    if record.release_set is None:
        return Measured(attempt)
    kind = Chosen if record.mask_seed is None else Masked
    return kind(attempt, record.release_set)


def _committed(record: RoundRecord, attempt: Attempt) -> Committed | Gone | TagsWrong:
    if record.go is not None:
        return Gone(attempt, record.go)
    return Committed(attempt, record.committed_since_s) if record.tags_failed is None else TagsWrong(attempt)


def known_round(server: Server, key: RoundKey) -> RoundRecord:
    """Raises: UnknownResource"""
    record = server.store.round(key)
    if record is None:
        raise UnknownResource(f"round {key.round}, attempt {key.attempt} is not announced here yet")
    return record


def standing(server: Server, record: RoundRecord) -> Standing:
    """Return what this server has signed and taken of an attempt: its answers rest on it. Raises: IncompleteRecord"""
    choice = Unchosen() if record.release_set is None else SetChosen(record.release_set)
    end: Undecided | SumAgreed | EndAgreed = Undecided()
    if record.outcome is not None:
        end = EndAgreed(record.outcome)
    elif record.sum_release is not None:
        end = SumAgreed(record.sum_release)
    return Standing(record.begun, _toss(server, record), choice, end, _half(record))


def _half(record: RoundRecord) -> Uncommitted | HalfCommitted:
    if record.commitment is None:
        return Uncommitted()
    verdict = record.go or record.tags_failed
    if record.tag_check is None:
        return HalfCommitted(record.commitment)
    if verdict is None:
        return HalfChecked(record.commitment, record.tag_check)
    return Judged(record.commitment, record.tag_check, verdict)


def _toss(server: Server, record: RoundRecord) -> Unlocked | SetSigned | LockSigned:
    agreed = record.agreed_set
    if agreed is None:
        return Unlocked(collected(server, record).contributions, awaited_sites(server, record))
    if record.peer_commitment is None:
        return SetSigned(agreed)
    if record.transcript is None:
        return LockSigned(agreed, record.nonce, record.peer_commitment)
    kind = ChallengeSigned if queries_missing(record) else Queried
    return kind(agreed, record.nonce, record.peer_commitment, record.transcript)


def facts_at_a(server: Server, study: str, peer: FromB | None = None, now_s: float | None = None) -> Facts:
    """Return A's facts at present; ``peer`` is B's last answer, to a question of ``now_s``."""
    limits, last = server.settings.limits, server.store.current_round(study)
    return Facts(
        roster=server.roster if last is None else roster_of(server, last),
        now_s=server.clock() if now_s is None else now_s,
        grace_s=limits.grace_s,
        attempts=limits.attempts,
        study_ended=server.store.study(study).state.ended,
        peer=Unasked() if peer is None else peer,
    )
