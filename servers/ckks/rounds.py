"""Rounds of ciphertexts: side A collects, agrees and sums alone, side B countersigns (docs/protocol.md 11).

B gets no part of an update, so it cannot confirm what A holds. Its signature says that this is the only agreed set of
the round, and that the set is of listed sites and large enough; later, that this is the round's only end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from protocol.errors import (
    AnnouncementMismatch,
    ConflictingMessage,
    ProtocolViolation,
    UnknownResource,
)
from protocol.rounds.agree import agree, shortfall
from protocol.rounds.transitions import RoundEvent, step
from protocol.wire import paths
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import NO_COMMITMENT, AgreedSet, OutcomeCause, ReleaseSet, RoundState, Signed
from servers.ckks.output import write_sum
from servers.ckks.release import deliver_sum_release, sign_sum_release
from servers.http.peer_client import PeerClient
from servers.notifications import wait_up_to
from servers.points import Point
from servers.rounds.collect import beyond_hope, collected, expected_sites, is_complete
from servers.rounds.end_round import Endings, NotYet, round_path
from servers.rounds.release import output_name
from servers.rounds.timing import Phases
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord


@dataclass(frozen=True, eq=False)
class EncryptedRounds:
    """Side A's part. ``release_set`` waits for the requester's release set, until ``deadline_s`` of the round."""

    server: Server
    peer: PeerClient
    endings: Endings
    phases: Phases
    release_set: Callable[[StudyRecord, RoundRecord], Awaitable[RoundRecord]]
    deadline_s: Callable[[RoundRecord], float]

    async def advance(self, study: StudyRecord, record: RoundRecord) -> None:
        """Do what the stored state asks for."""
        if record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
            await self._collect(study, record)
        elif record.state is RoundState.LOCKED:
            await self._agree(study, record)
        elif record.state is RoundState.MEASURED:
            await self._release(study, record)
        else:
            raise ProtocolViolation(f"{record.key.label} is {record.state}, which asks for nothing")

    async def _collect(self, study: StudyRecord, record: RoundRecord) -> None:
        server, change = self.server, self.server.changes.next(study.digest)
        self.phases.mark(study, "announced")
        if not is_complete(server, record):
            hopeless = beyond_hope(server, record)
            if hopeless is not None:
                await self.endings.skip(record, hopeless)
                return
            await wait_up_to(change, record.closes_at_s - server.clock())
            return
        record = server.store.round(record.key) or record
        held, announcement = collected(server, record).contributions, record.announcement.message
        agreed = agree(announcement, record.key.attempt, server.roster, held, held)
        lacking = shortfall(agreed, announcement, server.roster.requester)
        if lacking is not None:
            await self.endings.skip(record, lacking)
            return
        state, signed = step(record.progress, RoundEvent.LOCKED).state, server.sign(agreed)
        server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
        server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=signed))
        server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
        server.files.delete(server.store.forget_share_files(study.digest, before_round=record.key.round))
        self.phases.observe(study, "announced", "collecting")
        self.phases.mark(study, "locked")

    async def _agree(self, study: StudyRecord, record: RoundRecord) -> None:
        """Get B's signature. There is nothing to measure after it."""
        agreed = record.agreed
        if self.server.clock() >= self.deadline_s(record):
            await self.endings.skip(record, OutcomeCause.NOT_AGREED_IN_TIME)
            return
        path = round_path(paths.PEER_AGREED_SET, study, record)
        try:
            body = await self.peer.post(path, agreed.canonical(), "agreed_set")
        except UnknownResource:
            raise NotYet("the peer does not know this round yet") from None
        both = Signed[AgreedSet].parse(body)
        roster = self.server.roster
        if require_signatures(both, roster, (roster.operator_a.name, roster.operator_b.name)) != agreed.message:
            raise ProtocolViolation("the peer signed another set than this side's")
        state = step(record.progress, RoundEvent.MEASURED).state
        self.server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))

    async def _release(self, study: StudyRecord, record: RoundRecord) -> None:
        self.phases.mark(study, "measured")
        record = await self.release_set(study, record)
        if record.release_set is None:
            return
        self.phases.observe(study, "measured", "waiting_for_release_set")
        if record.sum_release is None:
            record = await self._sum_signed(study, record, record.release_set)
        await deliver_sum_release(self.server, self.peer, study, record)
        self.phases.observe(study, "locked", "lock_to_release")

    async def _sum_signed(self, study: StudyRecord, record: RoundRecord, chosen: Signed[ReleaseSet]) -> RoundRecord:
        """Both servers hold one release set; this side has added it up and signed the sum."""
        path = round_path(paths.PEER_RELEASE_SET, study, record)
        try:
            await self.peer.put(path, chosen.canonical(), "release_set")
        except ConflictingMessage as error:
            record = await self.endings.adopt_peers_release_set(study, record, error)
        name = output_name(record)
        digest = await asyncio.to_thread(write_sum, self.server, study, record, name)
        return sign_sum_release(self.server, record.key, name, digest)


def countersign_agreed_set(server: Server, record: RoundRecord, signed: Signed[AgreedSet]) -> Signed[AgreedSet]:
    """Side B: sign A's agreed set of a round of ciphertexts; one a round, the same again gets the same answer.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, WrongRound
    """
    agreed = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    if not record.announcement.message.encrypted:
        raise ProtocolViolation("the round is one of shares, of which both servers hold their own; lock it instead")
    if record.agreed_set is not None:
        if record.agreed_set.message != agreed:
            raise ConflictingMessage(f"{record.key.label} has another agreed set; there is one a round, for ever")
        return record.agreed_set
    _check_agreed(server, record, agreed)
    state, both = step(record.progress, RoundEvent.AGREED).state, server.countersign(signed)
    server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
    server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))
    server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
    return both


def _check_agreed(server: Server, record: RoundRecord, agreed: AgreedSet) -> None:
    announcement = record.announcement.message
    named = (agreed.study_digest, agreed.round, agreed.attempt, agreed.announcement_digest)
    if named != (record.key.study, record.key.round, record.key.attempt, announcement.digest()):
        raise AnnouncementMismatch("the agreed set is for another study, round, attempt or announcement")
    expected = expected_sites(server, announcement)
    if list(agreed.sites) != [p.name for p in server.roster.sites if p.name in expected and p.name in agreed.sites]:
        raise ProtocolViolation("the agreed set must name listed sites and the requester, in the roster's order")
    if any(
        (c.announcement_digest, c.commitment_b) != (announcement.digest(), NO_COMMITMENT) for c in agreed.contributions
    ):
        raise ProtocolViolation("the agreed set names shares for side B, or contributions to another announcement")
    lacking = shortfall(agreed, announcement, server.roster.requester)
    if lacking is not None:
        raise ProtocolViolation(f"the round cannot be agreed on: {lacking.reason}")
