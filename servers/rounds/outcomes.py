"""Rounds that end without a release: skipped, opened alone, or an attempt burnt; both sign (docs/protocol.md 7, 8)."""

from __future__ import annotations

from dataclasses import replace

from protocol.errors import WrongRound
from protocol.messages.control import OutcomeCause, RoundOutcome, RoundState, Signed, require_signatures
from protocol.rounds.side_b import Reply, answer, require_named
from protocol.rounds.states import STUDY_TRANSITIONS, RoundEvent, RoundKey, StudyEvent, step, study_step
from servers.points import Point
from servers.rounds.collect import roster_of
from servers.rounds.standing import standing
from servers.server import Server
from servers.store.study_records import RoundRecord, StudyRecord


def commit_skip(server: Server, record: RoundRecord, outcome: Signed[RoundOutcome]) -> None:
    """The round is over without a sum; its shares are deleted. Requester absent too often: the study pauses."""
    if record.state is not RoundState.SKIPPED:
        state = step(record.progress, RoundEvent.SKIPPED).state
        server.note_round(record, RoundState.SKIPPED)
        server.store.change_round(record.key, lambda r: replace(r, state=state, outcome=outcome, output_file=None))
        unserved = [] if record.output_file is None else [record.output_file]
        server.files.delete([*server.store.forget_attempt_files(record.key), *unserved])
        server.metrics.rounds.labels(RoundState.SKIPPED.value).inc()
        _count_absence(server, record.key.study, outcome.message.cause)
    elif record.outcome != outcome:
        server.store.change_round(record.key, lambda r: replace(r, outcome=outcome))


def commit_opened(server: Server, record: RoundRecord, outcome: Signed[RoundOutcome]) -> None:
    """A round without a sum is over: its shares are deleted, its opening stays for the requester. Twice as once."""
    ends_as = outcome.message.outcome
    if record.state is ends_as:
        return
    state = step(record.progress, RoundEvent(ends_as.value)).state
    server.note_round(record, ends_as)
    server.store.change_round(record.key, lambda r: replace(r, state=state, outcome=outcome))
    server.files.delete(server.store.forget_attempt_files(record.key))
    server.metrics.rounds.labels(ends_as.value).inc()
    _count_absence(server, record.key.study, outcome.message.cause)


def _count_absence(server: Server, digest: str, cause: OutcomeCause) -> None:
    limit = server.settings.limits.pause_after_skips
    absent = cause.requester_absent

    def counted(study: StudyRecord) -> StudyRecord:
        count = study.absent_in_a_row + 1 if absent else 0
        if (study.state, StudyEvent.REQUESTER_STAYED_AWAY) in STUDY_TRANSITIONS and count >= limit:
            state = study_step(study.state, StudyEvent.REQUESTER_STAYED_AWAY)
            return replace(study, state=state, absent_in_a_row=count)
        return replace(study, absent_in_a_row=count)

    server.store.change_study(digest, counted)


def commit_burn(server: Server, record: RoundRecord, outcome: Signed[RoundOutcome]) -> None:
    """The attempt's contributions are deleted unmeasured; the next attempt takes the same updates again."""
    burnt = step(record.progress, RoundEvent.BURNT)
    retried = step(burnt, RoundEvent.RETRIED)
    again = RoundRecord(
        key=RoundKey(record.key.study, record.key.round, retried.attempt),
        state=retried.state,
        announcement=record.announcement,
        closes_at_s=max(record.closes_at_s, server.clock() + server.settings.limits.retry_window_s),
    )
    server.note_round(record, RoundState.BURNT)
    server.store.change_round(record.key, lambda r: replace(r, state=burnt.state, outcome=outcome), then_add=again)
    server.files.delete(server.store.forget_attempt_files(record.key))
    server.metrics.rounds.labels(RoundState.BURNT.value).inc()


def commit_end(server: Server, record: RoundRecord, outcome: Signed[RoundOutcome]) -> None:
    """Commit what follows from the end that is signed."""
    match outcome.message.outcome:
        case RoundState.BURNT:
            commit_burn(server, record, outcome)
        case RoundState.RANKED | RoundState.CLOSED:
            commit_opened(server, record, outcome)
        case _:
            commit_skip(server, record, outcome)


def countersign_outcome(server: Server, key: RoundKey, signed: Signed[RoundOutcome]) -> Signed[RoundOutcome]:
    """Side B: agree to A's outcome, unless this side knows better; what has been signed is answered again.

    Raises: BadSignature, AnnouncementMismatch, WrongRound
    """
    message = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    require_named(message, key)
    record = server.store.round(key)
    if record is None:
        raise WrongRound(f"round {key.round}, attempt {key.attempt} is not known here yet")
    if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
        return record.signed_outcome
    both = server.countersign(signed)
    server.failpoints.reach(Point.BEFORE_OUTCOME_STORED)
    commit_end(server, record, both)
    server.failpoints.reach(Point.AFTER_OUTCOME_STORED)
    return both
