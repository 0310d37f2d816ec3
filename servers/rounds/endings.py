"""Rounds that end without a release: skipped, opened alone, or an attempt burnt; both sign (docs/protocol.md 7, 8).

A stores go before B hears of it, and signs no skip from then on. B signs a skip as long as A has handed nothing over,
whatever the requester gave it: so the two never end a round in two ways, and none waits for the other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from protocol.errors import (
    ConflictingMessage,
    MoietyError,
    ProtocolViolation,
    TranscriptMismatch,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages import paths
from protocol.messages.control import (
    AgreedSet,
    Go,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
    require_signatures,
)
from protocol.messages.peer import HandOver
from protocol.rounds.side_a import Act, End, FromB, Halt, Refused, Signature, Step, TryLater, due
from protocol.rounds.side_b import Move, Reply, answer, require_named
from protocol.rounds.states import (
    STUDY_TRANSITIONS,
    AtA,
    Committed,
    Measured,
    RoundEvent,
    RoundKey,
    StudyEvent,
    study_step,
)
from servers.failpoints import Point
from servers.peer_client import PeerClient
from servers.rounds.contributions import roster_of
from servers.rounds.release import accept_release_set, commit_release, take_go
from servers.rounds.state import at_a, facts_at_a, known_round, standing
from servers.server import Server
from servers.store.records import RoundRecord, StudyRecord
from servers.studies import refuse

_RETRY_WINDOW_S = 60.0
"""The time for sites to hear of a burnt attempt and send again: they poll every second; a large share takes long."""


def commit_end(server: Server, record: RoundRecord, outcome: Signed[RoundOutcome]) -> None:
    """Commit the end without a sum that is signed: shares are deleted, an opening stays for the requester.

    A burnt attempt is followed by another, which takes the same updates again. Requester absent too often: the study
    pauses. Twice as once, but that a second signature is kept.
    """
    ends_as = outcome.message.outcome
    if record.state is ends_as:
        if record.outcome != outcome:
            server.store.change_round(record.key, lambda r: replace(r, outcome=outcome))
        return
    state = record.begun.after(RoundEvent(ends_as.value))
    again: RoundRecord | None = None
    if ends_as is RoundState.BURNT:
        again = RoundRecord(
            key=replace(record.key, attempt=record.key.attempt + 1),
            state=replace(record.begun, state=state).after(RoundEvent.RETRIED),
            announcement=record.announcement,
            closes_at_s=max(record.closes_at_s, server.clock() + _RETRY_WINDOW_S),
        )
    server.note_round(record, ends_as)
    server.store.change_round(
        record.key, lambda r: replace(r, state=state, outcome=outcome, output_file=None), then_add=again
    )
    unserved = [] if record.output_file is None else [record.output_file]
    server.files.delete([*server.store.forget_attempt_files(record.key), *unserved])
    server.metrics.rounds.labels(ends_as.value).inc()
    if again is None:
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


M = TypeVar("M", AgreedSet, SumRelease, RoundOutcome)


class NotYet(Unavailable):
    """The round waits for the other server or the requester; look again soon."""


def round_path(template: str, study: StudyRecord, record: RoundRecord) -> str:
    """The peer's address for one attempt."""
    return paths.fill(template, study=study.name, round=record.key.round, attempt=record.key.attempt)


def next_step(server: Server, state: AtA, answer: FromB | None = None, asked_at_s: float | None = None) -> Step:
    """Return the step that is due, or due now that B has answered. Raises: NotYet, ProtocolViolation"""
    step = due(state, facts_at_a(server, state.attempt.key.study, answer, asked_at_s))
    if isinstance(step, TryLater):
        raise NotYet(step.detail)
    if isinstance(step, Halt):
        raise ProtocolViolation(step.detail)
    return step


async def signed_by_both(
    server: Server,
    peer: PeerClient,
    study: StudyRecord,
    record: RoundRecord,
    template: str,
    signed: Signed[M],
    kind: str,
    *refused: type[MoietyError],
) -> tuple[Step, Signed[M] | None]:
    """Return the end that follows from B's answer to what A has signed; with both signatures, when that is to be taken.

    ``refused``: the errors by which B answers.

    Raises: NotYet; ProtocolViolation, when B signs anything but what it was asked to
    """
    try:
        body = await peer.post(round_path(template, study, record), signed.canonical(), kind)
    except refused as error:
        return next_step(server, at_a(server, record), Refused(error)), None
    both = type(signed).parse(body)
    message = require_signatures(both, server.roster, [server.roster.operator_a.name, server.roster.operator_b.name])
    step = next_step(server, at_a(server, record), Signature(message))
    return step, both if step is Act.TAKE else None


@dataclass(frozen=True, eq=False)
class Endings:
    """Skips and burns, and what becomes of a release set that only one side has."""

    server: Server
    peer: PeerClient

    async def hand_over_release_set(self, study: StudyRecord, record: RoundRecord) -> RoundRecord:
        """Both servers hold one release set afterwards. Raises: ProtocolViolation"""
        try:
            await self.peer.put(
                round_path(paths.PEER_RELEASE_SET, study, record), record.chosen.canonical(), "release_set"
            )
        except ConflictingMessage as error:
            return await self.adopt_peers_release_set(study, record, error)
        return record

    async def ask_for_release_set(self, study: StudyRecord, record: RoundRecord) -> Step:
        """Take B's release set; where it has none, what follows.

        Only a deadline that had passed before B was asked counts, and a set that came to A meanwhile stands: otherwise
        B could hold its answer back until A signs a skip that blames the requester.
        """
        asked_at_s = self.server.clock()
        try:
            await self.take_peers_release_set(study, record)
        except UnknownResource as error:
            state = at_a(self.server, self.server.store.round(record.key) or record)
            if isinstance(state, Measured):
                return next_step(self.server, state, Refused(error), asked_at_s)
        return Act.LOOK_AGAIN

    async def take_peers_release_set(self, study: StudyRecord, record: RoundRecord) -> None:
        body = await self.peer.get(round_path(paths.PEER_RELEASE_SET, study, record), "release_set")
        with self.server.store.alone(record.key.study):
            now = self.server.store.round(record.key) or record
            _require_undisturbed(replace(now, release_set=record.release_set), record)
            accept_release_set(self.server, record, Signed[ReleaseSet].parse(body))

    async def adopt_peers_release_set(
        self, study: StudyRecord, record: RoundRecord, error: ConflictingMessage
    ) -> RoundRecord:
        """The requester signed two release sets and gave each server another: B's stands, A's has released nothing.

        A hands its set to B before it sends or takes a masked sum, so an honest B refuses it before anything was added
        up over it. Once the mask is drawn B has taken A's set: two sums under one mask would show B the difference.
        Nor is there another set once a sum of ciphertexts is signed.

        Raises: ProtocolViolation, when B took A's set before
        """
        try:
            next_step(self.server, at_a(self.server, record), Refused(error))
        except ProtocolViolation:
            refuse(self.server, study.digest, self.server.peer.name, error)
            raise
        await self.take_peers_release_set(study, replace(record, release_set=None))
        refuse(self.server, study.digest, self.server.roster.requester, error)
        return self.server.store.round(record.key) or record

    async def end(self, record: RoundRecord, step: End) -> None:
        """Say durably that this side will not release, then ask the peer to sign it too."""
        await self.deliver(self._signed_end(record, step))

    def _signed_end(self, record: RoundRecord, step: End) -> RoundRecord:
        with self.server.store.alone(record.key.study):
            now = self.server.store.round(record.key) or record
            _require_no_other_end(now)
            if self.server.store.beside is not None:
                _require_undisturbed(now, record)
            signed = self.server.sign(step.outcome)
            self.server.failpoints.reach(Point.BEFORE_OUTCOME_STORED)
            record = self.server.store.change_round(record.key, lambda r: replace(r, outcome=signed))
            self.server.failpoints.reach(Point.AFTER_OUTCOME_STORED)
        return record

    async def deliver(self, record: RoundRecord) -> None:
        """Get the peer's signature under the outcome that this side has signed.

        Raises: NotYet; ProtocolViolation, when the peer signs anything but what it was asked to
        """
        own, study, path = record.signed_outcome, self.server.store.study(record.key.study), paths.PEER_OUTCOME
        refused = (WrongRound, UnknownResource)
        step, both = await signed_by_both(self.server, self.peer, study, record, path, own, "outcome", *refused)
        if both is not None:
            commit_end(self.server, record, both)
        elif isinstance(step, End):
            await self.end(record, step)
        elif step is Act.TAKE_ALONE:
            commit_end(self.server, record, own)


def _require_undisturbed(now: RoundRecord, decided_on: RoundRecord) -> None:
    """Require that the requester has said nothing to another process since the step was decided. Raises: NotYet"""
    if (now.state, now.release_set, now.go, now.tags_failed) != (
        decided_on.state,
        decided_on.release_set,
        decided_on.go,
        decided_on.tags_failed,
    ):
        raise NotYet(f"{now.key.label} has changed meanwhile; it is looked at again")


def _require_no_other_end(record: RoundRecord) -> None:
    """One end per round: this side signs no other once it has signed the sum of a round of ciphertexts, or holds go."""
    if record.sum_release is not None:
        raise WrongRound(f"this server has signed the sum of round {record.key.round}; the round has no other end")
    if record.go is not None:
        raise WrongRound(f"this server holds the requester's go for round {record.key.round}, which is served")


async def ask_for_go(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> Step:
    """Side A: take B's go; where it has none, what follows. Of deadlines the same holds as for release sets.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation, when B shows anything else
    """
    asked_at_s = server.clock()
    try:
        body = await peer.get(round_path(paths.PEER_GO, study, record), "go")
        with server.store.alone(record.key.study):
            now = known_round(server, record.key)
            if now.go is None:
                take_go(server, now, Signed[Go].parse(body))
    except UnknownResource as error:
        state = at_a(server, known_round(server, record.key))
        if isinstance(state, Committed):
            return next_step(server, state, Refused(error), asked_at_s)
    return Act.LOOK_AGAIN


async def hand_over_go(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: B serves from here on, then this side does too. Raises: ProtocolViolation, when B will not"""
    handed = HandOver(go=record.signed_go)
    try:
        await peer.put(round_path(paths.PEER_GO, study, record), handed.canonical(), "hand_over")
    except (WrongRound, ConflictingMessage, TranscriptMismatch, ProtocolViolation) as error:
        next_step(server, at_a(server, record), Refused(error))
        raise
    server.failpoints.reach(Point.AFTER_GO_HANDED_OVER)
    commit_release(server, study, record, record.output_file)


def serve(server: Server, study: StudyRecord, key: RoundKey, handed: HandOver) -> None:
    """Side B: A has stored this go; serve. Twice as once.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, TranscriptMismatch,
            UnknownResource, WrongRound
    """
    record = take_go(server, known_round(server, key), handed.go)
    if isinstance(answer(standing(server, record), handed, roster_of(server, record)), Move):
        commit_release(server, study, record, record.output_file)


def kept_go(record: RoundRecord) -> Signed[Go]:
    """Side B: what the requester gave it. Raises: UnknownResource"""
    if record.go is None:
        raise UnknownResource("the requester's go is not here")
    return record.go
