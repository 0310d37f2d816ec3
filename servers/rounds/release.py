"""The release set, the mask, and each side's half of the output, checked by its tags (docs/protocol.md 8, 9, 15).

What a side commits to, its check and its shares of single sites' errors are stored before they leave, and the same
bytes leave again. What the requester says of both checks is stored before anything follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, ParamSpec, TypeVar

import numpy as np

from protocol.arithmetic.ring import ELEMENT_BYTES, SEED_BYTES, Ring, Usage, expand, from_bytes
from protocol.channel.sealing import SealedMessage
from protocol.errors import ConflictingMessage, NotListed, OutputGone, ProtocolViolation, UnknownResource, WrongRound
from protocol.messages import bodies
from protocol.messages.bodies import SECRET_BYTES
from protocol.messages.control import (
    Go,
    OutputHeader,
    ReleaseSet,
    RoundState,
    ShareKind,
    Signed,
    SumRelease,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
    require_signatures,
)
from protocol.messages.purpose import RoundStep
from protocol.protection.registry import output_header
from protocol.rounds.side_b import Reply, answer
from protocol.rounds.states import RoundEvent
from protocol.tags import (
    TagErrors,
    attempt_key,
    check_of,
    commitment_to,
    errors_of,
    mask_digest,
    require_judged,
    shares_of,
)
from servers.failpoints import Point
from servers.rounds.contributions import expected_sites, roster_of
from servers.rounds.state import known_round, standing
from servers.server import Server
from servers.store.files import FilePieces, file_name
from servers.store.records import Answer, AnswerKind, RoundRecord, StudyRecord
from servers.studies import refuse

P = ParamSpec("P")
V = TypeVar("V", Go, TagsFailed)

_PIECE: Final = 2**16
_SITES_AT_ONCE: Final = 32
"""The errors of so many sites' tags are computed in one pass: each needs a piece of its share in memory."""


def commit_half(server: Server, record: RoundRecord, half_digest: str, output_file: str | None) -> RoundRecord:
    """Sign what this side would serve, durably; nothing is served yet. Done before, it changes nothing.

    What happened while the half was made is looked at again: a round whose skip is signed is not committed to.
    Raises: WrongRound
    """
    with server.store.alone(record.key.study):
        now = server.store.round(record.key) or record
        if now.commitment is not None:
            return now
        state = now.begun.after(RoundEvent.COMMITTED)
        signed = server.sign(commitment_to(now.chosen.message, server.side, half_digest))
        at_s = server.clock()
        server.failpoints.reach(Point.BEFORE_HALF_COMMITTED)
        record = server.store.change_round(
            now.key,
            lambda r: replace(r, state=state, output_file=output_file, commitment=signed, committed_at_s=at_s),
        )
        server.failpoints.reach(Point.AFTER_HALF_COMMITTED)
        return record


# --- this side's check ------------------------------------------------------------------------------------------------


async def check_half(server: Server, record: RoundRecord, message: TagSeed) -> Signed[TagCheck]:
    """Take the seed of the tags, and say by how much those of this side's half are off.

    Raises: AnnouncementMismatch, CommitmentMismatch, WrongRound
    """
    if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
        return record.checked
    seed = bytes.fromhex(message.seed)
    errors = await _in_thread(_errors_of_half, server, record, seed)
    with server.store.alone(record.key.study):  # whatever happened since the errors were asked for counts
        record = known_round(server, record.key)
        if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
            return record.checked
        signed = server.sign(check_of(record.committed.message, errors))
        server.failpoints.reach(Point.BEFORE_TAG_CHECK_STORED)
        server.store.change_round(record.key, lambda r: replace(r, tag_seed=seed, tag_check=signed))
        server.failpoints.reach(Point.AFTER_TAG_CHECK_STORED)
        return signed


async def _in_thread(compute: Callable[P, Ring], *args: P.args, **kwargs: P.kwargs) -> Ring:
    """Raises: WrongRound, when the files are deleted meanwhile: the round is over"""
    try:
        return await asyncio.to_thread(compute, *args, **kwargs)
    except FileNotFoundError:
        raise WrongRound("the round's shares and its sum have been deleted meanwhile; the round is over") from None


def _errors_of_half(server: Server, record: RoundRecord, seed: bytes) -> Ring:
    """Shapes: -> uint64[2]"""
    key = attempt_key(record.announcement.message, record.key.attempt, seed)
    errors = TagErrors(key, _length(server, record))
    for piece in _half(server, record):
        errors.add(piece)
    found: Ring = errors.values()[0]
    return found


def _half(server: Server, record: RoundRecord) -> Iterator[Ring]:
    if record.committed.message.share_kind is ShareKind.SEED:
        length = _length(server, record)
        for start in range(0, length, _PIECE):
            yield expand(record.mask, Usage.OUTPUT_MASK, min(_PIECE, length - start), start=start)
        return
    if record.output_file is None:
        raise ProtocolViolation(f"{record.key.label}: the output has been deleted; its round is over")
    with server.files.path(record.output_file).open("rb") as file:
        while piece := file.read(ELEMENT_BYTES * _PIECE):
            yield from_bytes(piece, len(piece) // ELEMENT_BYTES)


def _length(server: Server, record: RoundRecord) -> int:
    study = server.store.study(record.key.study).study
    return study.shared_length(record.announcement.message.purpose)


# --- what the requester says of both ----------------------------------------------------------------------------------


def take_go(server: Server, record: RoundRecord, signed: Signed[Go]) -> RoundRecord:
    """Keep the requester's go; at side B nothing follows from it before side A hands it over.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, TranscriptMismatch, WrongRound
    """
    if _take_in(server, record, signed) is Reply.AGAIN:
        return record
    server.failpoints.reach(Point.BEFORE_GO_STORED)
    record = server.store.change_round(record.key, lambda r: replace(r, go=signed))
    server.failpoints.reach(Point.AFTER_GO_STORED)
    return record


async def share_errors(server: Server, record: RoundRecord, signed: Signed[TagsFailed]) -> Signed[TagShares]:
    """Tags failed: this side's shares of every released site's error, for the requester; the round has no go any more.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, TranscriptMismatch, WrongRound
    """
    if _take_in(server, record, signed) is Reply.AGAIN:
        return _stored_shares(server, record)
    errors = await _in_thread(_errors_of_sites, server, record, _release(record))
    with server.store.alone(record.key.study):  # whatever happened since the errors were asked for counts
        record = known_round(server, record.key)
        if _take_in(server, record, signed) is Reply.AGAIN:
            return _stored_shares(server, record)
        shares = server.sign(shares_of(_release(record), server.side, errors))
        server.failpoints.reach(Point.BEFORE_TAG_SHARES_STORED)
        server.store.change_round(
            record.key,
            lambda r: replace(r, tags_failed=signed),
            answers=[Answer(AnswerKind.TAG_SHARES, "", shares.canonical())],
        )
        server.failpoints.reach(Point.AFTER_TAG_SHARES_STORED)
        return shares


def _take_in(server: Server, record: RoundRecord, signed: Signed[V]) -> object:
    stated = require_judged(signed, _release(record), server.roster)
    try:
        return answer(standing(server, record), stated, roster_of(server, record))
    except ConflictingMessage as error:
        raise refuse(server, record.key.study, server.roster.requester, error) from None


def _release(record: RoundRecord) -> ReleaseSet:
    if record.release_set is None:
        raise WrongRound(f"round {record.key.round} is {record.state}; its release set comes first")
    return record.release_set.message


def _stored_shares(server: Server, record: RoundRecord) -> Signed[TagShares]:
    stored = server.store.answer(record.key, AnswerKind.TAG_SHARES)
    if stored is None:
        raise WrongRound(f"round {record.key.round} has no shares of tags here")
    return Signed[TagShares].parse(stored.body)


def _errors_of_sites(server: Server, record: RoundRecord, release: ReleaseSet) -> Ring:
    """Shapes: -> uint64[sites, 2]"""
    key = attempt_key(record.announcement.message, record.key.attempt, record.seed_of_tags)
    length = _length(server, record)
    held = {c.site: c for c in server.store.contributions(record.key)}
    parts = []
    for start in range(0, len(release.sites), _SITES_AT_ONCE):
        sites = release.sites[start : start + _SITES_AT_ONCE]
        parts.append(errors_of(key, length, [server.shares.source(held[site]) for site in sites]))
    return np.concatenate(parts)


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
        now = server.store.round(record.key) or record
        if now.mask_seed is not None:
            return now
        seed = server.randomness.bytes(SEED_BYTES, f"{now.key.label} output mask")
        server.failpoints.reach(Point.BEFORE_MASK_STORED)
        now = server.store.change_round(now.key, lambda r: replace(r, mask_seed=seed))
        server.failpoints.reach(Point.AFTER_MASK_STORED)
        return now


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
        commit_half(server, record, mask_digest(record.mask), None)
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
        now = server.store.round(record.key) or record
        if now.state is RoundState.RELEASED:
            return
        state = now.begun.after(RoundEvent.RELEASED)
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
