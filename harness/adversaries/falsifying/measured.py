"""A measured round in one process of which server B falsifies its part; what the requester then decides.

Sketches, products, shares and the requester's judgement are the product's own. Correlations are dealt, which changes
nothing about what is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.stats import norm

from client_agent.requester.measuring.judging import Judgement, RequesterFacts, RoundRule, judge
from harness.engine.protected_sum import Measuring, correlations_from
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import MODULUS, Ring, to_signed
from protocol.mpc import measurement, range_check
from protocol.mpc.measurement import OpenedSite, Operands, SiteSketch
from protocol.parameters import Needs, StudyParameters
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.sharing import Side, split
from protocol.wire.messages import RuleSpec

REQUESTER, VICTIM = "r0", "c1"
SITES = (REQUESTER, VICTIM, "c2", "c3", "c4", "c5")
PARAMETERS = StudyParameters(dimension=60, clip_norm=1.0, least_contributors=3)
_MODEL_BITS = 64 - PARAMETERS.range_bits
_ONES = dict.fromkeys(SITES, PARAMETERS.weight_grid)


@dataclass(frozen=True)
class Falsehood:
    """What server B changes about the victim.

    ``added`` to its share of every quantity that is opened about the victim, in squared ring units; ``raised`` is a
    projection of the range check whose top bits it makes larger by one.
    """

    added: int = 0
    raised: int | None = None


@dataclass(frozen=True, eq=False)
class Measured:
    """One round's rule and updates, int64[60] in ring units by site; ``seed`` draws shares and challenge."""

    spec: RuleSpec
    opens: Needs
    updates: Mapping[str, Ring] = field(repr=False)
    seed: bytes = field(repr=False)

    def judged(self, falsehood: Falsehood, number: int) -> Judgement:
        """What the requester decides about this round; the servers see no more of it than the release set."""
        rule = rule_for(self.spec, batch_size=16, grid=PARAMETERS.weight_grid)
        state = rule.init(tuple(SiteFacts(name=site, samples=100) for site in SITES[1:]))
        facts = RequesterFacts(REQUESTER, self.length(REQUESTER) / PARAMETERS.scale)
        by = RoundRule(self.spec, rule, state, PARAMETERS)
        return judge(self.opened(falsehood), facts, _ONES, by, round=number, opens=self.opens)

    def opened(self, falsehood: Falsehood) -> tuple[OpenedSite, ...]:
        """What comes to the requester."""
        halves_of = self._shares()
        operands = {side: self._operands(side, halves_of) for side in Side}
        operands[Side.B] = [self._falsified(one, falsehood) for one in operands[Side.B]]
        halves = correlations_from("dealer", self.seed)([one.lengths for one in operands[Side.A]], "round")
        return Measuring(PARAMETERS, _ONES, self.opens, self.seed, "round").opened(operands, halves)

    def length(self, site: str) -> float:
        """||x|| in ring units."""
        return float(np.linalg.norm(to_signed(self.updates[site]).astype(np.float64)))

    def own_thresholds(self) -> list[float]:
        """What server B knows beforehand of every projection y of the victim: below which number raising it fails.

        With r the low bits of -b, A's top bits are B's plus one exactly where y is at least 2^(h-1) - r.
        """
        h = PARAMETERS.range_bits
        share = self._shares()[Side.B][VICTIM]
        projected = range_check.project(share, range_check.projections(self.challenge, PARAMETERS))
        low = np.negative(projected) & np.uint64((1 << h) - 1)
        return [float((1 << (h - 1)) - int(r)) for r in low]

    @property
    def challenge(self) -> bytes:
        return derive(self.seed, "challenge")

    def _shares(self) -> dict[Side, dict[str, Ring]]:
        parts = {site: split(x, derive(self.seed, f"share of {site}"))[1].vector for site, x in self.updates.items()}
        return {Side.B: parts, Side.A: {site: self.updates[site] - part for site, part in parts.items()}}

    def _operands(self, side: Side, shares: Mapping[Side, Mapping[str, Ring]]) -> list[Operands]:
        zeros = np.zeros(PARAMETERS.dimension, dtype=np.uint64) if self.opens.of_norms else None
        sketches = [SiteSketch(site, shares[side][site], None if site == REQUESTER else zeros) for site in self.updates]
        return measurement.prepare_all(side, self.challenge, sketches, PARAMETERS, opens=self.opens)

    def _falsified(self, operands: Operands, falsehood: Falsehood) -> Operands:
        """Of the victim: its own quantities; where pairs are opened, those of later sites with it as well."""
        place = self.opens is Needs.PAIRS and SITES.index(operands.site) > SITES.index(VICTIM)
        factors = tuple(
            replace(one, local=(one.local + falsehood.added) % MODULUS)
            if operands.site == VICTIM or (place and number == SITES.index(VICTIM))
            else one
            for number, one in enumerate(operands.factors)
        )
        top = operands.range_operand.copy()
        if operands.site == VICTIM and falsehood.raised is not None:
            top[falsehood.raised] = (int(top[falsehood.raised]) + 1) % (1 << _MODEL_BITS)
        return replace(operands, factors=factors, range_operand=top)


def updates_of(seed: int, lengths: Sequence[float]) -> dict[str, Ring]:
    """Updates in random directions, whose lengths are those parts of the clip norm."""
    draw = np.random.default_rng(seed)
    found = {}
    for site, length in zip(SITES, lengths, strict=True):
        direction = draw.normal(size=PARAMETERS.dimension)
        scaled = direction / np.linalg.norm(direction) * length * PARAMETERS.encoded_norm
        found[site] = np.rint(scaled).astype(np.int64).view(np.uint64)
    return found


def chance_below(threshold: float) -> float:
    """How likely a projection of an update of length C in a random direction is below a number, in ring units."""
    return float(norm.cdf(threshold / (PARAMETERS.encoded_norm * np.sqrt(0.5))))
