"""One round with tags from the release set to what sites open, by the product's functions, without sockets.

A round is honest; what a party does otherwise is a method that an attack overrides. Servers sign, the requester
judges, every site opens what it is served with all its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from client_agent.study.release import own_key_id
from harness.attack.forgeries import release_set
from harness.attack.scripted_agents import (
    DIMENSION,
    REQUESTER,
    ROSTER,
    SITES,
    How,
    agreed_over,
    announced,
    by_operator,
    by_requester,
    signed_by_both,
    study,
)
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, Usage, derive, expand, from_bytes, to_bytes
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    Go,
    LayerShape,
    ModelSpec,
    OutputCommitment,
    OutputHeader,
    ReleaseSet,
    ShareKind,
    Signed,
    TagCheck,
    TagsFailed,
    WeightList,
)
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.protection.interface import AtSite
from protocol.protection.registry import output_header, protection_of
from protocol.protection.shares import with_tags
from protocol.release import masking_side
from protocol.rounds.evidence import PastRelease, check_release
from protocol.sharing import Side, split
from protocol.tags import (
    VectorDigest,
    WrongTags,
    attempt_key,
    check_of,
    commitment_to,
    errors_of,
    judged,
    mask_digest,
    require_judged,
    seed_hash,
    shares_of,
    shown_seed,
    wrong_tags,
)

T = TypeVar("T")
CONTRIBUTORS = SITES[:4]
RELEASED = (REQUESTER, *CONTRIBUTORS)
_ATTEMPT = 1
_CLIP_NORM = 4.0


@dataclass(frozen=True)
class Half:
    """One side's half of the output: the mask's seed, or the masked vector."""

    side: Side
    kind: ShareKind
    content: bytes

    def vector(self, length: int) -> Ring:
        """Shapes: -> uint64[length]"""
        if self.kind is ShareKind.SEED:
            return expand(self.content, Usage.OUTPUT_MASK, length)
        return from_bytes(self.content, length)


class TaggedRound:
    """``seed`` (32 bytes) is where every draw comes from; ``number`` the round's: who masks alternates."""

    def __init__(self, seed: bytes = bytes(range(32)), number: int = 1, dimension: int = DIMENSION) -> None:
        self._seed = seed
        self.number = number
        self.length = dimension + TAG_COORDINATES
        self.study = study(
            tags=True,
            parameters=StudyParameters(dimension=dimension, clip_norm=_CLIP_NORM, least_contributors=3),
            model=ModelSpec(kind="plugin", layers=(LayerShape(name="weight", shape=(dimension,)),)),
        )
        self.tag_seed = derive(seed, "tag seed")

    # --- what a party may do otherwise ---

    def shared(self, site: str, tagged: Ring) -> Ring:
        """A site shares its vector with its tags."""
        return tagged

    def told_seed(self, site: str) -> bytes:
        """The requester's seed, in that site's weight list."""
        return self.tag_seed

    def summed(self, side: Side, own: Ring) -> Ring:
        """A server adds up its shares."""
        return own

    def checked(self, side: Side, errors: Ring) -> Ring:
        """A server says by how much its half's tags are off."""
        return errors

    def site_errors(self, side: Side, errors: Ring) -> Ring:
        """A server says its shares of single sites' errors."""
        return errors

    def judged(self, said: Go | TagsFailed) -> Go | TagsFailed:
        """The requester says what follows."""
        return said

    def served(self, half: Half) -> bytes:
        """A server serves its half."""
        return half.content

    # --- the round ---

    @cached_property
    def updates(self) -> dict[str, NDArray[np.float64]]:
        """Clipped ones, in random directions."""
        draw = np.random.default_rng(list(self._seed))
        return {site: clip(draw.normal(size=self.length - TAG_COORDINATES), _CLIP_NORM)[0] for site in RELEASED}

    @cached_property
    def weight_list(self) -> WeightList:
        return self._announced[0].model_copy(update={"tag_seed": self.tag_seed.hex()})

    @cached_property
    def announcement(self) -> Announcement:
        of_seed = seed_hash(self.study.digest(), self.number, self.tag_seed)
        named = {"weight_list_digest": self.weight_list.digest(), "tag_seed_hash": of_seed}
        return self._announced[1].model_copy(update=named)

    @property
    def _announced(self) -> tuple[WeightList, Announcement]:
        return announced(self.study, self.number, CONTRIBUTORS, How(version=0))

    @cached_property
    def shares(self) -> dict[str, dict[Side, Ring]]:
        """Both of every site. Raises: CommitmentMismatch, from a site that was told another seed than announced"""
        found = {}
        for site in RELEASED:
            encoded = encode(self.updates[site], self.study.parameters, derive(self._seed, f"rounding {site}"))
            seed = self.told_seed(site).hex()
            pieces = with_tags([to_bytes(encoded)], self.announcement, _ATTEMPT, seed)
            vector = self.shared(site, from_bytes(b"".join(pieces), self.length).copy())
            part = split(vector, derive(self._seed, f"share {site}"))[1].vector
            found[site] = {Side.A: vector - part, Side.B: part}
        return found

    @cached_property
    def halves(self) -> dict[Side, Half]:
        """As each server fixes them, before it sees the seed."""
        masking = masking_side(self.number)
        mask_seed = derive(self._seed, "output mask")
        total = np.zeros(self.length, dtype=np.uint64)
        for side in Side:
            total += self.summed(side, np.add.reduce([self.shares[site][side] for site in RELEASED]))
        vector = total - expand(mask_seed, Usage.OUTPUT_MASK, self.length)
        return {
            masking: Half(masking, ShareKind.SEED, mask_seed),
            masking.other: Half(masking.other, ShareKind.VECTOR, to_bytes(vector)),
        }

    @cached_property
    def agreed_set(self) -> Signed[AgreedSet]:
        return signed_by_both(agreed_over(self.announcement, RELEASED))

    @cached_property
    def release(self) -> ReleaseSet:
        return release_set(self.agreed_set.message, RELEASED)

    @cached_property
    def commitments(self) -> tuple[Signed[OutputCommitment], Signed[OutputCommitment]]:
        a, b = (by_operator(side, commitment_to(self.release, side, _digest(self.halves[side]))) for side in Side)
        return a, b

    @cached_property
    def checks(self) -> tuple[Signed[TagCheck], Signed[TagCheck]]:
        a, b = (
            by_operator(
                side,
                check_of(
                    commitment.message, self.checked(side, self.errors([self.halves[side].vector(self.length)])[0])
                ),
            )
            for side, commitment in zip(Side, self.commitments, strict=True)
        )
        return a, b

    @cached_property
    def said(self) -> Signed[Go | TagsFailed]:
        said = self.judged(judged(self.release, self.commitments, self.checks))
        return by_requester(said)

    @property
    def goes(self) -> bool:
        """The servers accept the requester's go, and so serve."""
        if not isinstance(self.said.message, Go):
            return False
        require_judged(self.said, self.release, ROSTER)
        return True

    def wrong(self) -> WrongTags:
        """Return the sites whose tags are wrong, as the requester finds after it said that tags failed."""
        shares = [
            by_operator(side, shares_of(self.release, side, self.site_errors(side, self.errors(self.shares_at(side)))))
            for side in Side
        ]
        failed = require_judged(cast(Signed[TagsFailed], self.said), self.release, ROSTER)
        return wrong_tags(failed, self.release, (shares[0], shares[1]), ROSTER)

    def past(self) -> PastRelease:
        """The evidence, as a site has it."""
        return PastRelease(
            announcement=self.announcement,
            weight_list=self.weight_list,
            agreed_set=self.agreed_set,
            release_set=by_requester(self.release),
            go=cast(Signed[Go], self.said),
        )

    def opened(self, site: str = CONTRIBUTORS[0]) -> NDArray[np.float32]:
        """The average at a site. Raises: whatever the site refuses the evidence, a half or the sum for"""
        past = self.past()
        check_release(past, ROSTER, self.study.digest())

        def fetch(side: Side, take: Callable[[OutputHeader, Iterator[bytes]], T]) -> T:
            header = output_header(self.study, self.announcement, self.release, side, own_key_id(ROSTER, site))
            return take(header, iter([self.served(self.halves[side])]))

        return protection_of(self.announcement).open(AtSite(self.study, site, ROSTER), past, fetch)

    @property
    def average(self) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean(list(self.updates.values()), axis=0)
        return mean

    def shares_at(self, side: Side) -> list[Ring]:
        return [self.shares[site][side] for site in RELEASED]

    def errors(self, vectors: Iterable[Ring]) -> Ring:
        """Return the errors of vectors' tags. Shapes: uint64[length] each -> uint64[vectors, 2]"""
        key = attempt_key(self.announcement, _ATTEMPT, shown_seed(self.tag_seed))
        return errors_of(key, self.length, [source(vector) for vector in vectors])


def deviating(**steps: Callable[..., object]) -> type[TaggedRound]:
    """A tagged round in which these steps are the attacker's."""
    return cast(type[TaggedRound], type("Deviating", (TaggedRound,), steps))


def entry(length: int, place: int, units: int) -> Ring:
    """Zeros but for one element. Shapes: -> uint64[length]"""
    vector = np.zeros(length, dtype=np.uint64)
    vector[place] = units
    return vector


def source(vector: Ring) -> Callable[[int, int], Ring]:
    return lambda start, stop: vector[start:stop]


def _digest(half: Half) -> str:
    if half.kind is ShareKind.SEED:
        return mask_digest(half.content)
    found = VectorDigest()
    found.update(half.content)
    return found.hexdigest()
