"""Side A ends a round without a release, together with side B (docs/protocol.md 7, 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.errors import (
    ConflictingMessage,
    ErrorCode,
    MoietyError,
    ProtocolViolation,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.rounds.agree import Shortfall
from protocol.wire import paths
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import OutcomeCause, Purpose, ReleaseSet, RoundOutcome, RoundState, Signed
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.outcomes import commit_burn, commit_ranked, commit_skip, outcome_of
from servers.rounds.release import accept_release_set
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord
from servers.studies import refuse


class NotYet(Unavailable):
    """The round waits for the other server or the requester; look again soon."""


def round_path(template: str, study: StudyRecord, record: RoundRecord) -> str:
    """The peer's address for one attempt."""
    return paths.fill(template, study=study.name, round=record.key.round, attempt=record.key.attempt)


@dataclass(frozen=True, eq=False)
class Endings:
    """Skips and burns, and what becomes of a release set that only one side has."""

    server: Server
    peer: PeerClient

    async def take_peers_release_set(self, study: StudyRecord, record: RoundRecord) -> None:
        body = await self.peer.get(round_path(paths.PEER_RELEASE_SET, study, record), "release_set")
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
        if record.mask_seed is not None or record.sum_release is not None:
            refuse(self.server, study.digest, self.server.peer.name, error)
            raise ProtocolViolation(
                f"{record.key.label}: the peer took this side's release set and now names another; this side's sum may "
                "have left, so there is no second one: end the study and compare the servers' records"
            )
        await self.take_peers_release_set(study, replace(record, release_set=None))
        refuse(self.server, study.digest, self.server.roster.requester, error)
        return self.server.store.round(record.key) or record

    async def skip(self, record: RoundRecord, cause: OutcomeCause | Shortfall) -> None:
        """Say durably that this side will not release, then ask the peer to sign the skip too."""
        await self._sign_and_deliver(record, outcome_of(record, RoundState.SKIPPED, cause))

    async def rank(self, record: RoundRecord, cause: OutcomeCause) -> None:
        """End a ranking, which releases nothing; a skip or burn that the peer refused to sign gives way."""
        await self._sign_and_deliver(record, outcome_of(record, RoundState.RANKED, cause))

    async def burn(self, record: RoundRecord, cause: OutcomeCause, code: ErrorCode | None = None) -> None:
        """``code`` is that of the message that was refused, where one was."""
        if record.key.attempt >= self.server.settings.limits.attempts:
            await self.skip(record, Shortfall(OutcomeCause.ATTEMPTS_BURNT, found=record.key.attempt))
            return
        await self._sign_and_deliver(record, outcome_of(record, RoundState.BURNT, cause, code))

    async def _sign_and_deliver(self, record: RoundRecord, outcome: RoundOutcome) -> None:
        _require_no_sum_signed(self.server.store.round(record.key) or record)
        signed = self.server.sign(outcome)
        self.server.failpoints.reach(Point.BEFORE_OUTCOME_STORED)
        record = self.server.store.change_round(record.key, lambda r: replace(r, outcome=signed))
        self.server.failpoints.reach(Point.AFTER_OUTCOME_STORED)
        await self.deliver(record)

    async def deliver(self, record: RoundRecord) -> None:
        """Get the peer's signature. An opening that it has undoes a burn; nothing undoes a skip of shares.

        Raises: ProtocolViolation when the peer signs anything but what it was asked to
        """
        own = record.signed_outcome
        study = self.server.store.study(record.key.study)
        path = round_path(paths.PEER_OUTCOME, study, record)
        try:
            body = await self.peer.post(path, own.canonical(), "outcome")
        except (WrongRound, UnknownResource) as error:
            await self._outcome_refused(study, record, error)
            return
        signed = Signed[RoundOutcome].parse(body)
        names = [self.server.roster.operator_a.name, self.server.roster.operator_b.name]
        message = require_signatures(signed, self.server.roster, names)
        if message != own.message:
            raise ProtocolViolation(
                f"{record.key.label}: the peer answers with another outcome than the one that this side asked it to "
                "sign; were it taken, a burnt attempt could go on beside a skip that both have signed: end the study "
                "and compare the servers' records"
            )
        if message.outcome is RoundState.BURNT:
            commit_burn(self.server, record, signed)
        elif message.outcome is RoundState.RANKED:
            commit_ranked(self.server, record, signed)
        else:
            commit_skip(self.server, record, signed)

    async def _outcome_refused(self, study: StudyRecord, record: RoundRecord, error: MoietyError) -> None:
        outcome = record.signed_outcome
        if outcome.message.outcome is RoundState.RANKED:
            raise NotYet(error.detail)
        if _measured_at_peer(record, error):
            await self.rank(record, OutcomeCause.OPENING_AT_ONE_SERVER)
            return
        if outcome.message.outcome is RoundState.BURNT:
            await self.skip(record, OutcomeCause.OPENING_AT_ONE_SERVER)
        elif _released_at_peer(record, error):
            raise ProtocolViolation(
                f"{record.key.label}: the peer says that it has released a sum, which it cannot without this side, "
                "and this side has signed a skip: end the study and compare the servers' records"
            )
        elif record.state is not RoundState.SKIPPED:
            commit_skip(self.server, record, outcome)
        else:
            raise NotYet(error.detail)


def _require_no_sum_signed(record: RoundRecord) -> None:
    """One end a round: this side signs no other once it has signed the sum of a round of ciphertexts."""
    if record.sum_release is not None:
        raise WrongRound(f"this server has signed the sum of round {record.key.round}; the round has no other end")


def _measured_at_peer(record: RoundRecord, error: MoietyError) -> bool:
    """Whether the peer refused to burn or skip a ranking, as it does once it holds its half of what is opened."""
    ranks = record.announcement.message.purpose is Purpose.RANKING
    under_way = record.state in (RoundState.LOCKED, RoundState.MEASURED)
    return ranks and under_way and isinstance(error, WrongRound)


def _released_at_peer(record: RoundRecord, error: MoietyError) -> bool:
    """Whether the peer refused a measured round's skip, as it does once it has released."""
    return record.state is RoundState.MEASURED and isinstance(error, WrongRound)
