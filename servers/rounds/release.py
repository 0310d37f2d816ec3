"""The release set, the mask, and each site's output share (docs/protocol.md 8, 9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from protocol.arithmetic.ring import SEED_BYTES
from protocol.channel.sealing import SealedMessage
from protocol.errors import (
    ConflictingMessage,
    NotListed,
    OutputGone,
    UnknownResource,
)
from protocol.messages import bodies
from protocol.messages.bodies import SECRET_BYTES
from protocol.messages.control import (
    OutputHeader,
    ReleaseSet,
    RoundState,
    ShareKind,
    Signed,
    SumRelease,
    require_signatures,
)
from protocol.messages.purpose import RoundStep
from protocol.protection.registry import output_header
from protocol.rounds.side_b import Reply, answer
from protocol.rounds.states import RoundEvent, step
from servers.points import Point
from servers.rounds.collect import expected_sites, roster_of
from servers.rounds.halves import commit_half, commit_mask
from servers.rounds.standing import standing
from servers.server import Server
from servers.store.files.pieces import FilePieces
from servers.store.files.shares import file_name
from servers.store.study_records import RoundRecord, StudyRecord
from servers.studies import refuse

_BOTH: Final = 2


def accept_release_set(server: Server, record: RoundRecord, signed: Signed[ReleaseSet]) -> None:
    """Store the requester's release set: one per round, the same again changes nothing.

    A ranking has none. Raises: BadSignature, AnnouncementMismatch, MalformedMessage, ConflictingMessage, WrongRound
    """
    requester = server.roster.requester
    release = require_signatures(signed, server.roster, [requester])
    try:
        reply = answer(standing(server, record), release, roster_of(server, record))
    except ConflictingMessage as error:
        raise refuse(server, record.key.study, requester, error) from None
    if reply is Reply.KEEP:
        server.failpoints.reach(Point.BEFORE_RELEASE_SET_STORED)
        server.store.change_round(record.key, lambda r: replace(r, release_set=signed))
        server.failpoints.reach(Point.AFTER_RELEASE_SET_STORED)


def with_mask_seed(server: Server, record: RoundRecord) -> RoundRecord:
    """Draw t once for this release and keep it durably, so that every later sum is masked the same."""
    with server.store.alone(record.key.study):
        return _masked(server, server.store.round(record.key) or record)


def _masked(server: Server, record: RoundRecord) -> RoundRecord:
    if record.mask_seed is not None:
        return record
    seed = server.randomness.bytes(SEED_BYTES, f"{record.key.label} output mask")
    server.failpoints.reach(Point.BEFORE_MASK_STORED)
    record = server.store.change_round(record.key, lambda r: replace(r, mask_seed=seed))
    server.failpoints.reach(Point.AFTER_MASK_STORED)
    return record


def output_name(record: RoundRecord) -> str:
    return file_name("output", record.key.study, record.key.round, record.key.attempt)


def new_output_name(server: Server, record: RoundRecord) -> str:
    """A name that no output was ever kept under: of two that arrive at once, neither replaces the other."""
    key = record.key
    return file_name("output", key.study, key.round, key.attempt, server.boot, next(server.outputs))


def keep_output(
    server: Server, study: StudyRecord, record: RoundRecord, output_file: str, half_digest: str | None
) -> None:
    """Release with an output that is on disk, or commit to it; ``half_digest`` is there in a round with tags."""
    if half_digest is None:
        commit_release(server, study, record, output_file)
    else:
        commit_half(server, record, half_digest, output_file)


def keep_mask(server: Server, study: StudyRecord, record: RoundRecord) -> None:
    """Release with the mask's seed, or commit to it, where the round has tags. Raises: WrongRound"""
    if record.announcement.message.tagged:
        commit_mask(server, record)
    else:
        commit_release(server, study, record, None)


def keep_first_output(
    server: Server, study: StudyRecord, record: RoundRecord, output_file: str, half_digest: str | None
) -> None:
    """:func:`keep_output` under a name of its own; the first one stands, a later one is deleted.

    Nothing is awaited between the look at the round and the commit: of two sums that arrive at once, one counts.
    Raises: WrongRound
    """
    try:
        keep_output(server, study, record, output_file, half_digest)
    finally:
        now = server.store.round(record.key)
        if now is None or now.output_file != output_file:
            server.files.delete([output_file])


def commit_release(
    server: Server,
    study: StudyRecord,
    record: RoundRecord,
    output_file: str | None,
    sum_release: Signed[SumRelease] | None = None,
) -> None:
    """The round is released on this side; old outputs are deleted. Done before, it changes nothing.

    ``sum_release``: in a round of ciphertexts, both servers' signatures under the sum.

    What happened while the sum was on its way is looked at again: a round whose skip is signed is never released.
    Raises: WrongRound
    """
    with server.store.alone(record.key.study):
        _released(server, study, server.store.round(record.key) or record, output_file, sum_release)


def _released(
    server: Server,
    study: StudyRecord,
    now: RoundRecord,
    output_file: str | None,
    sum_release: Signed[SumRelease] | None,
) -> None:
    if now.state is RoundState.RELEASED:
        return
    state = step(now.progress, RoundEvent.RELEASED).state
    server.note_round(now, RoundState.RELEASED)
    server.failpoints.reach(Point.BEFORE_OUTPUT_STORED)
    server.store.change_round(
        now.key, lambda r: replace(r, state=state, output_file=output_file, sum_release=sum_release)
    )
    server.failpoints.reach(Point.AFTER_OUTPUT_STORED)
    if study.absent_in_a_row:
        server.store.change_study(study.digest, lambda s: replace(s, absent_in_a_row=0))
    oldest_kept = now.key.round - server.settings.limits.outputs_kept_rounds + 1
    server.files.delete(server.store.forget_outputs(now.key.study, before_round=oldest_kept))
    server.metrics.rounds.labels(RoundState.RELEASED.value).inc()


@dataclass(frozen=True)
class ServedOutput:
    """This side's half of a round's output for one site, before it is sealed; ``content`` is read once."""

    server: Server
    label: str
    site: str
    header: OutputHeader
    content: FilePieces | Iterator[bytes]

    def at_hand(self) -> bool:
        """Return whether the next piece of the content is in memory."""
        return isinstance(self.content, FilePieces) and self.content.at_hand()

    def sealed(self) -> SealedMessage:
        secret = self.server.randomness.bytes(SECRET_BYTES, f"{self.label} output for {self.site}")
        return bodies.seal_output(self.header, self.content, self.server.sealing_key_of(self.site), secret)


def served_output(server: Server, study: StudyRecord, record: RoundRecord | None, site: str) -> ServedOutput:
    """This side's half of a round's output, to a site that it listed; of any round to one that the present one lists.

    Such a site missed the sum and applies it now: the same mask and the same vector, never a new one.
    Raises: UnknownResource, NotListed, OutputGone
    """
    if record is None or record.state is not RoundState.RELEASED or record.release_set is None:
        raise UnknownResource("this round has no output here (yet); wait until the view says 'released'")
    if site not in expected_sites(server, record.announcement.message) and not _listed_now(server, study, site):
        raise NotListed(f"{site!r} was not listed for round {record.key.round}, nor for the present one")
    announcement, release = record.announcement.message, record.release_set.message
    countersigned = RoundStep.COUNTERSIGN in announcement.protection.plan.steps
    if countersigned and (record.sum_release is None or len(record.sum_release.signatures) != _BOTH):
        raise UnknownResource(
            f"the sum of round {record.key.round} is not signed by both servers; wait until the view says 'released'"
        )
    header = output_header(study.study, announcement, release, server.side, server.key_id_of(site))
    content = _output_content(server, record, header.share_kind)
    return ServedOutput(server, record.key.label, site, header, content)


def _listed_now(server: Server, study: StudyRecord, site: str) -> bool:
    current = server.store.current_round(study.digest)
    return current is not None and site in current.announcement.message.listed


def _output_content(server: Server, record: RoundRecord, kind: ShareKind) -> FilePieces | Iterator[bytes]:
    seed = kind is ShareKind.SEED
    if (record.mask_seed if seed else record.output_file) is None:
        raise OutputGone(
            f"the output of round {record.key.round} is no longer kept; take the requester's latest checkpoint"
        )
    return iter([record.mask]) if seed else server.files.read(record.output_file or "")
