"""A round with tags: this side's half of the output fixed, checked and judged before anything is served (section 15).

What a side commits to, its check and its shares of single sites' errors are stored before they leave, and the same
bytes leave again. What the requester says of both checks is stored before anything follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

import numpy as np

from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, Usage, expand, from_bytes
from protocol.errors import ConflictingMessage, ProtocolViolation, WrongRound
from protocol.messages.control import Go, ReleaseSet, ShareKind, Signed, TagCheck, TagSeed, TagsFailed, TagShares
from protocol.rounds.side_b import Reply, answer
from protocol.rounds.states import RoundEvent, step
from protocol.tag_verdicts import check_of, commitment_to, require_judged, shares_of
from protocol.tags import TagErrors, attempt_key, errors_of, mask_digest
from servers.points import Point
from servers.rounds.collect import roster_of
from servers.rounds.sketches import share_source
from servers.rounds.standing import known_round, standing
from servers.server import Server
from servers.store.files.stored_vector import Scratch
from servers.store.records import Answer, AnswerKind
from servers.store.study_records import RoundRecord
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
        return _committed(server, server.store.round(record.key) or record, half_digest, output_file)


def _committed(server: Server, now: RoundRecord, half_digest: str, output_file: str | None) -> RoundRecord:
    if now.commitment is not None:
        return now
    state = step(now.progress, RoundEvent.COMMITTED).state
    signed = server.sign(commitment_to(now.chosen.message, server.side, half_digest))
    at_s = server.clock()
    server.failpoints.reach(Point.BEFORE_HALF_COMMITTED)
    record = server.store.change_round(
        now.key,
        lambda r: replace(r, state=state, output_file=output_file, commitment=signed, committed_at_s=at_s),
    )
    server.failpoints.reach(Point.AFTER_HALF_COMMITTED)
    return record


def commit_mask(server: Server, record: RoundRecord) -> RoundRecord:
    """:func:`commit_half` at the side that serves the mask's seed. Raises: WrongRound"""
    return commit_half(server, record, mask_digest(record.mask), None)


# --- this side's check ------------------------------------------------------------------------------------------------


async def check_half(server: Server, record: RoundRecord, message: TagSeed) -> Signed[TagCheck]:
    """Take the seed of the tags, and say by how much those of this side's half are off.

    Raises: AnnouncementMismatch, CommitmentMismatch, WrongRound
    """
    if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
        return record.checked
    seed = bytes.fromhex(message.seed)
    errors = await _in_thread(_errors_of_half, server, record, seed)
    with server.store.alone(record.key.study):
        return _kept_check(server, known_round(server, record.key), message, errors)


def _kept_check(server: Server, record: RoundRecord, message: TagSeed, errors: Ring) -> Signed[TagCheck]:
    """Check again what has happened since the halves were computed."""
    if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
        return record.checked
    signed = server.sign(check_of(record.committed.message, errors))
    server.failpoints.reach(Point.BEFORE_TAG_CHECK_STORED)
    seed = bytes.fromhex(message.seed)
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
    """Yield the half that this side committed to, piece by piece."""
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
    release = _release(record)
    errors = await _in_thread(_errors_of_sites, server, record, release)
    with server.store.alone(record.key.study):
        return _kept_shares(server, known_round(server, record.key), signed, errors)


def _kept_shares(server: Server, record: RoundRecord, signed: Signed[TagsFailed], errors: Ring) -> Signed[TagShares]:
    """Check again what has happened since the shares were computed."""
    release = _release(record)
    if _take_in(server, record, signed) is Reply.AGAIN:
        return _stored_shares(server, record)
    shares = server.sign(shares_of(release, server.side, errors))
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
        parts.append(errors_of(key, length, [share_source(server, held[site], Scratch()) for site in sites]))
    return np.concatenate(parts)
