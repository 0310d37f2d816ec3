"""Signed checks of a release: go, no go, which site's tags are wrong, which server lied (section 15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.errors import AnnouncementMismatch, ProtocolViolation, TranscriptMismatch
from protocol.messages.control import (
    Go,
    HalvesChecked,
    OutputCommitment,
    ReleaseSet,
    Roster,
    ShareKind,
    Signed,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
    require_signatures,
)
from protocol.messages.round import Words
from protocol.release import masking_side
from protocol.sharing import Side
from protocol.tags import PAIR

H = TypeVar("H", bound=HalvesChecked)


def words(values: Ring) -> Words:
    """Two tags as they are written in a message. Shapes: uint64[2]"""
    first, second = (f"{int(value):016x}" for value in values)
    return first, second


def numbers(written: Words) -> Ring:
    """The inverse of :func:`words`. Shapes: -> uint64[2], ring 2^64"""
    return np.array([int(word, 16) for word in written], dtype=np.uint64)


def half_kind(side: Side, round_number: int) -> ShareKind:
    """Return the kind of half that a side serves in a round of shares: the mask's seed, or the masked vector."""
    return ShareKind.SEED if masking_side(round_number) is side else ShareKind.VECTOR


# --- what servers and the requester say -------------------------------------------------------------------------------


def commitment_to(release: ReleaseSet, side: Side, digest: str) -> OutputCommitment:
    """``digest`` from ``protocol.tags``, of what this side will serve."""
    return OutputCommitment(
        study_digest=release.study_digest,
        round=release.round,
        attempt=release.attempt,
        release_digest=release.digest(),
        side=side,
        share_kind=half_kind(side, release.round),
        half_digest=digest,
    )


def check_of(commitment: OutputCommitment, errors: Ring) -> TagCheck:
    """``errors`` of the tags of the half that the side committed to. Shapes: uint64[2]"""
    return TagCheck(
        study_digest=commitment.study_digest,
        round=commitment.round,
        attempt=commitment.attempt,
        side=commitment.side,
        commitment_digest=commitment.digest(),
        values=words(errors),
    )


def shares_of(release: ReleaseSet, side: Side, errors: Ring) -> TagShares:
    """``errors`` of every released site's share at one side. Shapes: uint64[sites, 2]"""
    return TagShares(
        study_digest=release.study_digest,
        round=release.round,
        attempt=release.attempt,
        release_digest=release.digest(),
        side=side,
        sites=release.sites,
        values=tuple(words(one) for one in errors),
    )


def judged(
    release: ReleaseSet,
    commitments: tuple[Signed[OutputCommitment], Signed[OutputCommitment]],
    checks: tuple[Signed[TagCheck], Signed[TagCheck]],
) -> Go | TagsFailed:
    """Return the requester's verdict on both servers' checks, side A's first, whose signatures it has verified."""
    kind = TagsFailed if np.any(sum_of(checks)) else Go
    return kind(
        study_digest=release.study_digest,
        round=release.round,
        attempt=release.attempt,
        release_digest=release.digest(),
        commitments=commitments,
        checks=checks,
    )


# --- what others check of it ------------------------------------------------------------------------------------------


def sum_of(checks: Sequence[Signed[TagCheck]]) -> Ring:
    """The errors of the sum's tags. Shapes: -> uint64[2], ring 2^64"""
    total = np.zeros(PAIR, dtype=np.uint64)
    for check in checks:
        total += numbers(check.message.values)
    return total


def require_commitment(
    signed: Signed[OutputCommitment], release: ReleaseSet, side: Side, roster: Roster
) -> OutputCommitment:
    """Return this side's signed commitment to what it will serve of this release.

    Raises: BadSignature, AnnouncementMismatch
    """
    stated = require_signatures(signed, roster, [_operator(roster, side)])
    if stated != commitment_to(release, side, stated.half_digest):
        raise AnnouncementMismatch(
            f"side {side.value!r} committed to another release, or to another half than round {release.round} has it "
            "serve"
        )
    return stated


def require_check(signed: Signed[TagCheck], commitment: OutputCommitment, roster: Roster) -> TagCheck:
    """Return that side's check of the half that it committed to. Raises: BadSignature, AnnouncementMismatch"""
    side = commitment.side
    stated = require_signatures(signed, roster, [_operator(roster, side)])
    if stated != check_of(commitment, numbers(stated.values)):
        raise AnnouncementMismatch(f"side {side.value!r} checked the tags of another half than it committed to")
    return stated


def require_judged(signed: Signed[H], release: ReleaseSet, roster: Roster) -> H:
    """A go, or a word that tags failed, about this release: everybody's signature, and what the checks add up to.

    Raises: BadSignature, AnnouncementMismatch; ProtocolViolation, when the checks do not add up to what it says
    """
    stated = require_signatures(signed, roster, [roster.requester])
    named = (stated.study_digest, stated.round, stated.attempt, stated.release_digest)
    if named != (release.study_digest, release.round, release.attempt, release.digest()):
        raise AnnouncementMismatch(f"{stated.KIND} is about another release than that of round {release.round}")
    for side, committed, check in zip(Side, stated.commitments, stated.checks, strict=True):
        require_check(check, require_commitment(committed, release, side, roster), roster)
    wrong = bool(np.any(sum_of(stated.checks)))
    if wrong is not isinstance(stated, TagsFailed):
        raise ProtocolViolation(
            f"{stated.KIND}: the servers' checks add up to {'an error' if wrong else 'zero'}, which is the opposite"
        )
    return stated


def require_own(stated: HalvesChecked, commitment: Signed[OutputCommitment], check: Signed[TagCheck]) -> None:
    """A server finds its own words in what the requester says. Raises: TranscriptMismatch"""
    side = commitment.message.side
    place = list(Side).index(side)
    if (stated.commitments[place].message, stated.checks[place].message) != (commitment.message, check.message):
        raise TranscriptMismatch(f"{stated.KIND} holds another commitment or check of side {side.value!r} than it made")


def require_about(stated: TagSeed, study_digest: str, round_number: int, attempt: int) -> None:
    """Raises: AnnouncementMismatch"""
    if (stated.study_digest, stated.round, stated.attempt) != (study_digest, round_number, attempt):
        raise AnnouncementMismatch("the seed of tags is for another study, round or attempt")


# --- who it was -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongTags:
    """``sites`` have tags that are not those of their vectors, by both servers' shares.

    ``server_lied``: those shares do not add up to the checks, so at least one server is wrong about its own, and
    ``sites`` says nothing about sites.
    """

    sites: tuple[str, ...]
    server_lied: bool


def wrong_tags(
    failed: TagsFailed, release: ReleaseSet, shares: tuple[Signed[TagShares], Signed[TagShares]], roster: Roster
) -> WrongTags:
    """Return the sites whose tags are wrong, from both sides' shares, side A's first.

    Requires: ``failed`` passed :func:`require_judged`
    Reveals:  to the requester: by how much a site's tags are off, zero for all that did as they should
    Raises:   BadSignature, AnnouncementMismatch
    """
    errors = np.zeros((len(release.sites), PAIR), dtype=np.uint64)
    for side, signed in zip(Side, shares, strict=True):
        stated = require_signatures(signed, roster, [_operator(roster, side)])
        mine = np.array([numbers(one) for one in stated.values], dtype=np.uint64).reshape(-1, PAIR)
        if mine.shape != errors.shape or stated != shares_of(release, side, mine):
            raise AnnouncementMismatch(f"side {side.value!r} shares errors of another release's sites")
        errors += mine
    lied = bool(np.any(errors.sum(axis=0, dtype=np.uint64) != sum_of(failed.checks)))
    sites = tuple(site for site, error in zip(release.sites, errors, strict=True) if np.any(error))
    return WrongTags(sites=sites, server_lied=lied)


def contradicted(go: Go, errors_of_seed: Ring, errors_of_vector: Ring) -> tuple[Side, ...]:
    """The sides whose signed check is not that of the half that they committed to and served.

    Shapes:   uint64[2] each: of PRG(t) and of v, both found to be what was committed to
    """
    masks = masking_side(go.round)
    found = {masks: errors_of_seed, masks.other: errors_of_vector}
    return tuple(
        side for side, check in zip(Side, go.checks, strict=True) if check.message.values != words(found[side])
    )


def _operator(roster: Roster, side: Side) -> str:
    return roster.operator_a.name if side is Side.A else roster.operator_b.name
