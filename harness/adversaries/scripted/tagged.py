"""All sites of a federation in one object, in rounds with tags: step by step, so that any step can be a wrong one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.adversaries.scripted.bodies import opened
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_requester import R, ScriptedSites, make_study
from harness.adversaries.signed_client import Reached
from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import Ring, from_bytes
from protocol.parameters import Needs
from protocol.release import masking_side
from protocol.sharing import Side
from protocol.tags.halves import VectorDigest, mask_digest
from protocol.tags.keys import attempt_key, kept_key, seed_hash, shown_seed
from protocol.tags.sums import TagErrors, TagSums
from protocol.tags.verdicts import contradicted, judged, require_check, require_commitment, require_judged
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import (
    Announcement,
    Go,
    OutputCommitment,
    OutputHeader,
    Purpose,
    ReleaseSet,
    RoundState,
    RoundView,
    Signed,
    Study,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
)


def tagged_study(federation: Reached, dimension: int, name: str) -> Study:
    """A study whose sums have tags."""
    return make_study(federation, dimension, name=name, tags=True)


@dataclass(frozen=True)
class Opened:
    """A released sum as one site opens it. ``errors`` of its tags; ``liars``: whose signed check is not its half's."""

    total: Ring
    errors: Ring
    liars: tuple[Side, ...]
    as_committed: bool


class TaggedSites(ScriptedSites[R]):
    """Sites of a :func:`tagged_study`; the seed of a round's tags follows from its number."""

    def seed(self, number: int) -> bytes:
        return hashlib.sha256(f"{self.study.name} seed of tags {number}".encode()).digest()

    def announcement(
        self,
        number: int,
        *,
        listed: Sequence[str] | None = None,
        opens: Needs = Needs.DISTANCES,
        closes_in_s: float = 500.0,
    ) -> Announcement:
        plain = super().announcement(number, listed=listed, opens=opens, closes_in_s=closes_in_s)
        hashed = seed_hash(plain.study_digest, number, self.seed(number))
        return plain.model_copy(update={"tag_seed_hash": hashed})

    def key(self, announcement: Announcement, attempt: int = 1) -> bytes:
        return attempt_key(announcement, attempt, shown_seed(self.seed(announcement.round)))

    def with_tags(self, x: Ring, announcement: Announcement, attempt: int = 1) -> Ring:
        """The vector that an honest site shares."""
        pairs = []
        for key in (self.key(announcement, attempt), kept_key(announcement, attempt, self.seed(announcement.round))):
            sums = TagSums(key)
            sums.add(x)
            pairs.append(sums.values()[0])
        return np.concatenate([x, *pairs])

    # --- from the announcement to both commitments --------------------------------------------------------------------

    def contribute_all(self, announcement: Announcement, vectors: Mapping[str, Ring], attempt: int = 1) -> None:
        for site, vector in vectors.items():
            sealed = self.seal_contribution(site, vector, announcement, attempt)
            self.contribute(site, sealed, announcement.round, attempt)

    def measured(self, number: int, own: Ring, numerators: Mapping[str, int]) -> RoundView:
        """Queries where the round asks for them, then both openings."""
        current = self.wait_transcript(Side.A, number)
        if current.announcement.message.opens.queried:
            self.send_queries(current, own, numerators)
        for side in Side:
            current = self.wait_round(side, number, RoundState.MEASURED)
        return current

    def committed(self, number: int) -> dict[Side, RoundView]:
        """Both views once both servers have committed."""
        return {side: self.wait_round(side, number, RoundState.COMMITTED) for side in Side}

    def commitments(self, views: Mapping[Side, RoundView]) -> tuple[Signed[OutputCommitment], Signed[OutputCommitment]]:
        """Checked as a requester checks them."""
        found = {side: there(views[side].commitment, "commitment") for side in Side}
        for side, one in found.items():
            require_commitment(one, self.release_of(views[side]), side, self.federation.roster)
        return found[Side.A], found[Side.B]

    def release_of(self, view: RoundView) -> ReleaseSet:
        return there(view.release_set, "release set").message

    # --- seed, go, no go ----------------------------------------------------------------------------------------------

    def show_seed(self, side: Side, number: int, attempt: int = 1, seed: bytes | None = None) -> Signed[TagCheck]:
        shown = shown_seed(self.seed(number)) if seed is None else seed
        message = TagSeed(study_digest=self.study.digest(), round=number, attempt=attempt, seed=shown.hex())
        path = self.path(paths.TAG_SEED, round=number, attempt=attempt)
        return Signed[TagCheck].parse(self.me.ok(side, "PUT", path, message.canonical()))

    def verdict(self, views: Mapping[Side, RoundView]) -> Signed[Go]:
        """Show the seed to both servers, and say that their checks add up to zero, which they do."""
        go, failed = self.judge(views)
        assert failed is None, "the checks add up to an error"
        return there(go, "go")

    def failed(self, views: Mapping[Side, RoundView]) -> Signed[TagsFailed]:
        """Likewise where they do not."""
        return there(self.judge(views)[1], "word that tags failed")

    def judge(self, views: Mapping[Side, RoundView]) -> tuple[Signed[Go] | None, Signed[TagsFailed] | None]:
        """Show the seed to both servers, and say what their checks say: the one or the other."""
        commitments, release = self.commitments(views), self.release_of(views[Side.A])
        a, b = (self.show_seed(side, release.round, release.attempt) for side in Side)
        for commitment, check in zip(commitments, (a, b), strict=True):
            require_check(check, commitment.message, self.federation.roster)
        said = judged(release, commitments, (a, b))
        if isinstance(said, Go):
            return sign(said, self.requester, self.me.keys.signing), None
        return None, sign(said, self.requester, self.me.keys.signing)

    def go(self, verdict: Signed[Go], to: Sequence[Side] = tuple(Side)) -> None:
        said = verdict.message
        for side in to:
            self.me.ok(side, "PUT", self.path(paths.GO, round=said.round, attempt=said.attempt), verdict.canonical())

    def fail(self, verdict: Signed[TagsFailed]) -> tuple[Signed[TagShares], Signed[TagShares]]:
        """To B first: A ends the round as soon as it knows."""
        said = verdict.message
        path = self.path(paths.TAGS_FAILED, round=said.round, attempt=said.attempt)
        b, a = (
            Signed[TagShares].parse(self.me.ok(side, "POST", path, verdict.canonical())) for side in (Side.B, Side.A)
        )
        return a, b

    def released(self, number: int) -> dict[Side, RoundView]:
        return {side: self.wait_round(side, number, RoundState.RELEASED) for side in Side}

    # --- opening ------------------------------------------------------------------------------------------------------

    def open_sum(self, site: str, view: RoundView) -> Opened:
        """Both halves, compared with what go says of them."""
        go = require_judged(there(view.go, "go"), self.release_of(view), self.federation.roster)
        length, masks = self.study.shared_length(Purpose.UPDATE), masking_side(view.round)
        halves = {}
        for side in Side:
            body = self.clients[site].ok(side, "GET", self.path(paths.OUTPUT, round=view.round))
            header, halves[side] = opened(body, self.clients[site].keys.sealing, OutputHeader)
            assert header.length == length
        digest = VectorDigest()
        digest.update(halves[masks.other])
        found = {masks: mask_digest(halves[masks]), masks.other: digest.hexdigest()}
        said = {one.message.side: one.message.half_digest for one in go.commitments}
        pad, masked = expand(halves[masks], Usage.OUTPUT_MASK, length), from_bytes(halves[masks.other], length)
        errors = TagErrors(self.key(view.announcement.message, view.attempt), length, 2)
        errors.add(pad, masked)
        of_seed, of_vector = errors.values()
        return Opened(
            total=(pad + masked)[: self.study.parameters.dimension],
            errors=of_seed + of_vector,
            liars=contradicted(go, of_seed, of_vector),
            as_committed=found == said,
        )
