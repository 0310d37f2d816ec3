"""A round's tags: their seed and keys, tags of vectors, and the signed checks of a release (docs/protocol.md 9, 15).

Each server commits to its half of an output before it sees the seed of the tags. The side that has the mask's seed t
commits to t, which is 32 random bytes, so a hash hides it. The other one signs the digest of its whole vector v, tags
included; v is uniform to whoever lacks t.

The requester draws 32 fresh random bytes for a round. The weight list carries them, sealed to each listed site, and two
keys follow from them: one from what servers are shown once both have signed what they are going to serve, whose hash
the announcement carries, and one that stays among the sites.

A vector ends with two pairs of tags: the first under the key that servers are shown, the second under the one that
stays among the sites. A pair is <K_1, x> and <K_2, x>: with c the place i in block b, K_1[c] = r[b] k[i] and K_2[c] =
s[b] k[i + 1], for words k of one block and two scales for each block, all uniform. So a pair takes next to no AES.

For an error e whose last block other than zero is b, and the last entry other than zero there e[c], divisible by 2^v
and no further: both <k, e's block> and its neighbour a word on are 2^v times something uniform, the second whatever the
first is; the first tag hits over r[b] with probability 2^(w-64) where 2^w divides its product, the second over s[b]. On
average over k, a pair hits with at most 2^(2v-128) ((64 - v) / 2 + 1)^2. No error within the coordinates' bound has v
above 34, so at most 2^-52.

Source: the multilinear hash over a ring with shifted keys, Carter and Wegman 1981, over blocks with one key as in UMAC,
Black, Halevi, Krawczyk, Krovetz and Rogaway 1999; scales in place of its second hash, as tags have to add up.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from protocol.arithmetic import kernels
from protocol.arithmetic.ring import SEED_BYTES, Ring, Usage, expand, expand_into
from protocol.channel.keys import require_length
from protocol.channel.sealing import Octets
from protocol.errors import AnnouncementMismatch, CommitmentMismatch, ProtocolViolation, TranscriptMismatch
from protocol.messages.control import (
    Announcement,
    Go,
    HalvesChecked,
    OutputCommitment,
    ReleaseSet,
    Roster,
    ShareKind,
    Signed,
    TagCheck,
    TagsFailed,
    TagShares,
    require_signatures,
)
from protocol.messages.round import Words
from protocol.parameters import PROTOCOL_VERSION, TAG_COORDINATES
from protocol.release import masking_side
from protocol.sharing import ChunkSource, Side

H = TypeVar("H", bound=HalvesChecked)

_MASK_SEED_DOMAIN: Final = f"{PROTOCOL_VERSION} output mask\x00".encode()
_VECTOR_DOMAIN: Final = f"{PROTOCOL_VERSION} output vector\x00".encode()


def mask_digest(t_seed: bytes) -> str:
    """The commitment to t, in hex. Raises: MalformedMessage, when t is not 32 bytes"""
    require_length("a mask's seed", t_seed, SEED_BYTES)
    return hashlib.sha256(_MASK_SEED_DOMAIN + t_seed).hexdigest()


class VectorDigest:
    """The digest of v, whose bytes come in pieces of any size: 8 little-endian bytes an element."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_VECTOR_DOMAIN)

    def update(self, piece: Octets) -> None:
        self._hash.update(piece)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


_SEED_DOMAIN: Final = f"{PROTOCOL_VERSION} tag seed"
_SHOWN_DOMAIN: Final = f"{PROTOCOL_VERSION} tag seed shown"
_KEY_DOMAIN: Final = f"{PROTOCOL_VERSION} tag key"
_KEPT_DOMAIN: Final = f"{PROTOCOL_VERSION} kept tag key"


def shown_seed(seed: bytes) -> bytes:
    """Derive the seed that servers are shown: HKDF-Expand (RFC 5869), 32 bytes. It says nothing of the round's seed
    itself.

    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    require_length("a tag seed", seed, SEED_BYTES)
    return _expanded(seed, _SHOWN_DOMAIN)


def seed_hash(study_digest: str, round_number: int, seed: bytes) -> str:
    """Return the hash of the shown seed that an announcement holds, in hex. It hides both seeds.

    Requires: ``seed`` 32 fresh random bytes, used for one round
    Raises:   MalformedMessage, when it is not 32 bytes
    """
    return _hash_of_shown(study_digest, round_number, shown_seed(seed))


def require_seed(announcement: Announcement, seed: str | None) -> bytes | None:
    """At a site: the announced seed, from hex; None in a round without tags, which has none.

    Raises:   CommitmentMismatch, when it is another one, or there is one too many or too few
    """
    if announcement.tag_seed_hash is None and seed is None:
        return None
    if seed is not None:
        drawn = bytes.fromhex(seed)
        require_shown(announcement, shown_seed(drawn).hex())
        return drawn
    raise _another(announcement)


def require_shown(announcement: Announcement, shown: str) -> bytes:
    """At a server: what the announcement says that it will be shown, from hex.

    Raises:   CommitmentMismatch, when it is another one, or the round has none
    """
    found = bytes.fromhex(shown)
    hashed = _hash_of_shown(announcement.study_digest, announcement.round, found)
    if not hmac.compare_digest(hashed, announcement.tag_seed_hash or ""):
        raise _another(announcement)
    return found


def attempt_key(announcement: Announcement, attempt: int, shown: bytes) -> bytes:
    """The key of one attempt's shown tags, 32 bytes, from the shown seed.

    A burnt attempt is followed by another with fresh shares of the same update, and so with other tags.

    Requires: ``shown`` from :func:`shown_seed`, or passed :func:`require_shown`
    """
    return _expanded(shown, _of_attempt(_KEY_DOMAIN, announcement, attempt))


def kept_key(announcement: Announcement, attempt: int, seed: bytes) -> bytes:
    """The key of one attempt's kept tags, 32 bytes, which servers never see.

    Requires: ``seed`` passed :func:`require_seed`
    """
    return _expanded(seed, _of_attempt(_KEPT_DOMAIN, announcement, attempt))


def _hash_of_shown(study_digest: str, round_number: int, shown: bytes) -> str:
    said = f"{_SEED_DOMAIN} study {study_digest} round {round_number}\x00".encode()
    return hashlib.sha256(said + shown).hexdigest()


def _of_attempt(domain: str, announcement: Announcement, attempt: int) -> str:
    return f"{domain} study {announcement.study_digest} round {announcement.round} attempt {attempt}"


def _expanded(seed: bytes, info: str) -> bytes:
    return HKDFExpand(hashes.SHA256(), SEED_BYTES, info.encode()).derive(seed)


def _another(announcement: Announcement) -> CommitmentMismatch:
    return CommitmentMismatch(
        f"round {announcement.round}: the seed of its tags is not the announced one; take the one whose hash the "
        "announcement carries, or none where it carries none"
    )


PAIR: Final = 2
BLOCK: Final = 2048
_SCALES_FROM: Final = BLOCK + 2
_BLOCKS_AT_ONCE: Final = 256
_WINDOW: Final = _BLOCKS_AT_ONCE * BLOCK
_CHUNK: Final = 1 << 15


@unique
class TagPair(IntEnum):
    """The two pairs behind a vector, in their order."""

    SHOWN = 0
    KEPT = 1


class TagSums:
    """<K_1, x> and <K_2, x> of one or more vectors that come piece by piece, each from its first coordinate on.

    Requires: ``key`` from :func:`protocol.tags.attempt_key` or :func:`protocol.tags.kept_key`
    """

    def __init__(self, key: bytes, vectors: int = 1) -> None:
        self._key = key
        self._done = 0
        self._totals = np.zeros((vectors, PAIR), dtype=np.uint64)
        self._words = expand(key, Usage.TAGS, BLOCK + 1)
        self._scales = np.empty(PAIR * _BLOCKS_AT_ONCE, dtype=np.uint64)

    def add(self, *pieces: Ring) -> None:
        """The next piece of every vector, as long as each other.

        Shapes:   uint64[n] each, ring 2^64
        Raises:   ProtocolViolation, when there is not one for each vector, or they differ in length
        """
        _require_same(pieces, len(self._totals))
        at = 0
        while at < pieces[0].size:
            window, within = divmod(self._done, _WINDOW)
            if within == 0:
                expand_into(self._key, Usage.TAGS, self._scales, start=_SCALES_FROM + self._scales.size * window)
            stop = min(pieces[0].size, at + _WINDOW - within)
            block, place = divmod(within, BLOCK)
            for total, piece in zip(self._totals, pieces, strict=True):
                kernels.multiply_into(total, self._words, self._scales[PAIR * block :], piece[at:stop], place)
            self._done += stop - at
            at = stop

    def values(self) -> Ring:
        """The tags of what has come so far. Shapes: -> uint64[vectors, 2], ring 2^64"""
        return self._totals.copy()


class TagErrors:
    """<K_j, x> - tag_j of vectors that end with their tags, for one pair; zero for a vector that carries its own.

    Shares of a vector have errors that add up to the vector's.

    Requires: ``length`` counts all tags; ``key`` as for :class:`TagSums`, of this ``pair``
    """

    def __init__(
        self,
        key: bytes,
        length: int,
        vectors: int = 1,
        pair: TagPair = TagPair.SHOWN,
    ) -> None:
        self._sums = TagSums(key, vectors)
        self._left = length - TAG_COORDINATES
        self._tags = np.zeros((vectors, TAG_COORDINATES), dtype=np.uint64)
        self._tags_left = TAG_COORDINATES
        self._own = slice(PAIR * pair, PAIR * (pair + 1))

    def add(self, *pieces: Ring) -> None:
        """The next piece of every vector. Shapes, raises: as :meth:`TagSums.add`; ProtocolViolation, too long ones"""
        _require_same(pieces, len(self._tags))
        size = pieces[0].size
        values = min(self._left, size)
        self._sums.add(*(piece[:values] for piece in pieces))
        self._left -= values
        tags, place = size - values, TAG_COORDINATES - self._tags_left
        if tags > self._tags_left:
            raise ProtocolViolation(f"a vector goes on for {tags - self._tags_left} elements behind its tags")
        for row, piece in zip(self._tags, pieces, strict=True):
            row[place : place + tags] = piece[values:]
        self._tags_left -= tags

    def values(self) -> Ring:
        """The errors, once all has come.

        Shapes:   -> uint64[vectors, 2], ring 2^64
        Raises:   ProtocolViolation, when elements are missing
        """
        if self._tags_left:
            raise ProtocolViolation(f"{self._left + self._tags_left} elements are missing at the end of a vector")
        return self._sums.values() - self._tags[:, self._own]


def errors_of(key: bytes, length: int, sources: Sequence[ChunkSource]) -> Ring:
    """:class:`TagErrors` of vectors that need not be in memory: shares, or the halves of an output; shown tags.

    Shapes:   -> uint64[len(sources), 2], ring 2^64
    """
    errors = TagErrors(key, length, len(sources))
    for start in range(0, length, _CHUNK):
        stop = min(start + _CHUNK, length)
        errors.add(*(source(start, stop) for source in sources))
    return errors.values()


def _require_same(pieces: Sequence[Ring], vectors: int) -> None:
    if len(pieces) != vectors or len({piece.shape for piece in pieces}) != 1:
        raise ProtocolViolation(
            f"{vectors} vectors take {vectors} pieces of one length, found shapes {[piece.shape for piece in pieces]}"
        )


# --- how tags are written ---------------------------------------------------------------------------------------------


def words(values: Ring) -> Words:
    """Two tags as they are written in a message. Shapes: uint64[2]"""
    first, second = (f"{int(value):016x}" for value in values)
    return first, second


def numbers(written: Words) -> Ring:
    """The inverse of :func:`words`. Shapes: -> uint64[2], ring 2^64"""
    return np.array([int(word, 16) for word in written], dtype=np.uint64)


# --- what servers and the requester say -------------------------------------------------------------------------------


def commitment_to(release: ReleaseSet, side: Side, digest: str) -> OutputCommitment:
    """``digest`` from ``protocol.tags``, of what this side will serve."""
    return OutputCommitment(
        study_digest=release.study_digest,
        round=release.round,
        attempt=release.attempt,
        release_digest=release.digest(),
        side=side,
        share_kind=ShareKind.SEED if masking_side(release.round) is side else ShareKind.VECTOR,
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
    stated = require_signatures(signed, roster, [roster.operator(side).name])
    if stated != commitment_to(release, side, stated.half_digest):
        raise AnnouncementMismatch(
            f"side {side.value!r} committed to another release, or to another half than round {release.round} has it "
            "serve"
        )
    return stated


def require_check(signed: Signed[TagCheck], commitment: OutputCommitment, roster: Roster) -> TagCheck:
    """Return that side's check of the half that it committed to. Raises: BadSignature, AnnouncementMismatch"""
    side = commitment.side
    stated = require_signatures(signed, roster, [roster.operator(side).name])
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
        stated = require_signatures(signed, roster, [roster.operator(side).name])
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
