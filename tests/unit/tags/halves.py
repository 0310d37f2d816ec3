"""A release of three sites whose sum has tags: what each side serves, commits to and checks, and who signed it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol.arithmetic.ring import Ring, Usage, expand, to_bytes
from protocol.messages.control import (
    Announcement,
    Go,
    Message,
    OutputCommitment,
    Roster,
    Signed,
    TagCheck,
    TagShares,
    countersign,
    sign,
)
from protocol.parameters import TAG_COORDINATES
from protocol.release import masking_side
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side, VectorShare, chunk_source
from protocol.tags import (
    TagSums,
    VectorDigest,
    attempt_key,
    check_of,
    commitment_to,
    errors_of,
    judged,
    mask_digest,
    seed_hash,
    shares_of,
    shown_seed,
)
from tests.kit.round_messages import agreed_set, announcement_of, release_set, weight_list
from tests.unit.parties import REQUESTER, SITES, parties

PARTIES = parties()
ROSTER: Roster = PARTIES.roster.message
STUDY, SEED, T = "d" * 64, bytes(range(32)), bytes(range(32, 64))
DIMENSION = 9


def by(signer: str, message: Message) -> Signed:
    """Signed as that party does."""
    return sign(message, signer, PARTIES.keys[signer].signing)


def by_side(side: Side, message: Message) -> Signed:
    return by(f"operator-{side.value}", message)


@dataclass
class Release:
    """``wrong``: what is added to a site's first tag; ``changed``: to an element of the masked vector."""

    number: int = 1
    wrong: tuple[int, int, int] = (0, 0, 0)
    changed: int = 0

    def __post_init__(self) -> None:
        sites = (REQUESTER, *SITES[1:3])
        weights = dict.fromkeys(sites[1:], 1)
        self.weight_list = weight_list(STUDY, weights, round=self.number, grid=1, tag_seed=SEED.hex())
        hidden = seed_hash(STUDY, self.number, SEED)
        told = {"model_version": self.number - 1, "least_contributors": 2, "tag_seed_hash": hidden}
        self.announcement: Announcement = announcement_of(self.weight_list, **told)
        self.agreed = agreed_set(self.announcement, sites)
        self.release = release_set(self.agreed, sites)
        self.key = attempt_key(self.announcement, 1, shown_seed(SEED))
        self.length = DIMENSION + TAG_COORDINATES
        rng = np.random.default_rng(self.number)
        self.shares: list[tuple[Ring, Ring]] = []
        for off in self.wrong:
            sums, x = TagSums(self.key), rng.integers(0, 2**64, DIMENSION, dtype=np.uint64)
            sums.add(x)
            tags = sums.values()[0]
            tags[:1] += np.uint64(off)
            vector, share = (
                np.concatenate([x, tags, np.zeros(2, dtype=np.uint64)]),
                rng.integers(0, 2**64, self.length, dtype=np.uint64),
            )
            self.shares.append((share, vector - share))
        total = np.sum([a + b for a, b in self.shares], axis=0, dtype=np.uint64)
        self.pad = expand(T, Usage.OUTPUT_MASK, self.length)
        self.vector = total - self.pad
        self.vector[:1] += np.uint64(self.changed)

    def half(self, side: Side) -> Ring:
        return self.pad if masking_side(self.number) is side else self.vector

    def errors(self, *vectors: Ring) -> Ring:
        return errors_of(self.key, self.length, [chunk_source(VectorShare(vector)) for vector in vectors])

    def commitment(self, side: Side) -> OutputCommitment:
        if masking_side(self.number) is side:
            return commitment_to(self.release, side, mask_digest(T))
        digest = VectorDigest()
        digest.update(to_bytes(self.vector))
        return commitment_to(self.release, side, digest.hexdigest())

    def check(self, side: Side) -> TagCheck:
        return check_of(self.commitment(side), self.errors(self.half(side))[0])

    def signed_commitments(self) -> tuple[Signed[OutputCommitment], Signed[OutputCommitment]]:
        a, b = (by_side(side, self.commitment(side)) for side in Side)
        return a, b

    def signed_checks(self) -> tuple[Signed[TagCheck], Signed[TagCheck]]:
        a, b = (by_side(side, self.check(side)) for side in Side)
        return a, b

    def verdict(self) -> Signed:
        """Go, or that tags failed, as an honest requester signs it."""
        return by(REQUESTER, judged(self.release, self.signed_commitments(), self.signed_checks()))

    def tag_shares(self) -> tuple[Signed[TagShares], Signed[TagShares]]:
        a, b = (
            by_side(side, shares_of(self.release, side, self.errors(*(pair[place] for pair in self.shares))))
            for place, side in enumerate(Side)
        )
        return a, b

    def evidence(self, go: Signed[Go] | None) -> PastRelease:
        agreed = countersign(by_side(Side.A, self.agreed), "operator-b", PARTIES.keys["operator-b"].signing)
        return PastRelease(
            announcement=self.announcement,
            weight_list=self.weight_list,
            agreed_set=agreed,
            release_set=by(REQUESTER, self.release),
            go=go,
        )
