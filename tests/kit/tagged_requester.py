"""The scripted requester of rounds with tags: go, and the sum as a site opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.attack.scripted_requester import R, ScriptedRequester
from harness.attack.signed_client import opened, there
from protocol.arithmetic.ring import Ring, Usage, expand, from_bytes
from protocol.messages import paths
from protocol.messages.control import Go, OutputHeader, Purpose, RoundView, Signed
from protocol.release import masking_side
from protocol.sharing import Side
from protocol.tags import TagErrors, VectorDigest, contradicted, mask_digest, require_judged


@dataclass(frozen=True)
class Opened:
    """A released sum as one site opens it. ``errors`` of its tags; ``liars``: whose signed check is not its half's."""

    total: Ring
    errors: Ring
    liars: tuple[Side, ...]
    as_committed: bool


class TaggedRequester(ScriptedRequester[R]):
    """Finishes rounds with tags."""

    def verdict(self, views: Mapping[Side, RoundView]) -> Signed[Go]:
        """Show the seed to both servers, and say that their checks add up to zero, which they do."""
        return self.judged(views, Go)

    def go(self, verdict: Signed[Go], to: Sequence[Side] = tuple(Side)) -> None:
        path = self.path(paths.GO, round=verdict.message.round, attempt=verdict.message.attempt)
        for side in to:
            self.me.ok(side, "PUT", path, verdict.canonical())

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
