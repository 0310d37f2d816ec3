"""A study of falsified rounds: what the server has learned when the site leaves, all is over, or it is caught."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import mean, stdev
from typing import Final, TypeAlias

import numpy as np
from scipy.stats import norm

from harness.attack.attack import passes, taken_out
from harness.attack.attacked_study import Line, program_versions, timed
from harness.attack.scripted_agents import How, announced, study
from harness.engine.protected_sum import Measuring, correlations_from
from protocol.arithmetic.ring import MODULUS, Ring, derive, to_signed
from protocol.errors import PolicyRefusal, ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc import measurement, sketch
from protocol.mpc.measurement import OpenedSite, Operands, SiteSketch
from protocol.parameters import Needs, StudyParameters
from protocol.policy import clauses
from protocol.policy.clauses import TIMES_LEFT_OUT
from protocol.policy.memory import SiteMemory, remember_left_out
from protocol.rounds.judgement import Judgement, RequesterFacts, RoundRule, judge, longest_norm
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.sharing import Side, split

REQUESTER, VICTIM = "r0", "c1"
SITES = (REQUESTER, VICTIM, "c2", "c3", "c4", "c5")
PARAMETERS = StudyParameters(dimension=60, clip_norm=1.0, least_contributors=3)
_MODEL_BITS = 64 - PARAMETERS.range_bits
_ONES = dict.fromkeys(SITES, PARAMETERS.weight_grid)


@dataclass(frozen=True)
class Falsehood:
    """Server B's changes to the values about the victim.

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
        """Return the requester's judgement of this round; the servers see no more of it than the release set."""
        rule = rule_for(self.spec, batch_size=16, grid=PARAMETERS.weight_grid)
        state = rule.init(tuple(SiteFacts(name=site, samples=100) for site in SITES[1:]))
        facts = RequesterFacts(REQUESTER, self.length(REQUESTER) / PARAMETERS.scale)
        by = RoundRule(self.spec, rule, state, PARAMETERS)
        return judge(self.opened(falsehood), facts, _ONES, by, round=number, opens=self.opens)

    def opened(self, falsehood: Falsehood) -> tuple[OpenedSite, ...]:
        """Return the values that the round opens to the requester."""
        halves_of = self._shares()
        operands = {side: self._operands(side, halves_of) for side in Side}
        operands[Side.B] = [self._falsified(one, falsehood) for one in operands[Side.B]]
        halves = correlations_from("dealer", self.seed)([one.lengths for one in operands[Side.A]], "round")
        return Measuring(PARAMETERS, _ONES, self.opens, self.seed, "round").opened(operands, halves)

    def length(self, site: str) -> float:
        """||x|| in ring units."""
        return float(np.linalg.norm(to_signed(self.updates[site]).astype(np.float64)))

    def own_thresholds(self) -> list[float]:
        """Return, for every projection y of the victim, the number below which raising it fails, as server B knows it.

        With r the low bits of -b, A's top bits are B's plus one exactly where y is at least 2^(h-1) - r.
        """
        h = PARAMETERS.range_bits
        share = self._shares()[Side.B][VICTIM]
        projected = sketch.project(share, sketch.projections(self.challenge, PARAMETERS))
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
        """Change the victim's own quantities and, where pairs are opened, those of later sites with it."""
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


def _takes_part(number: int, memory: SiteMemory) -> bool:
    try:
        clauses.check_left_out_twice(announced(study(), number, SITES[1:], How(version=number))[1], memory)
    except PolicyRefusal:
        return False
    return True


def cases(rounds: int, failures: int) -> int:
    """Count the sequences of answers in so many rounds, of which at most ``failures`` fail."""
    return sum(math.comb(rounds, failed) for failed in range(min(rounds, failures) + 1))


def share_that_fails(rounds: int, failures: int) -> float:
    """Return the share of cases that the next question should let fail, so that all answers together say most."""
    return cases(rounds - 1, failures - 1) / cases(rounds, failures) if failures else 0.0


_SQUARED: Final = PARAMETERS.encoded_norm**2


class Question(StrEnum):
    """NORM: is its norm above a number. PROJECTION: is a random projection of it below one. GAP: is a gap between
    two scores of multi-Krum above one."""

    NORM = "norm"
    PROJECTION = "projection"
    GAP = "gap"


# A search is one study's questions. `updates` are the same in every round: the worst case, as updates that move tell
# less; lengths are parts of the clip norm. `ask` gives the next question, which fails in this share of cases if it can,
# and None when nothing is left to find. `answered` learns if the site is in the sum. `bits` are those that all answers
# give; 0 where they contradict the update.


class NormSearch:
    """Adds to a squared norm what makes it exceed the bound exactly where it is above a threshold."""

    spec, opens = RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS

    def __init__(self) -> None:
        self._low, self._high, self._middle = 0.0, float(_SQUARED), 0.0
        self._bound = min(longest_norm(PARAMETERS, PARAMETERS.weight_grid), 1.0) * PARAMETERS.scale

    def updates(self, seed: int) -> dict[str, Ring]:
        length = 0.1 + 0.8 * float(np.random.default_rng(seed).random())
        return updates_of(seed, (0.5, length, 0.5, 0.6, 0.7, 0.4))

    def ask(self, measured: Measured, share: float) -> Falsehood | None:
        if self._high - self._low < 2:
            return None
        self._middle = self._high - (self._high - self._low) * share
        return Falsehood(added=math.floor(self._bound**2 - self._middle))

    def answered(self, stays: bool) -> None:
        if stays:
            self._high = self._middle + 1
        else:
            self._low = self._middle - 1

    def bits(self, measured: Measured) -> float:
        truth = measured.length(VICTIM) ** 2
        return math.log2(_SQUARED / (self._high - self._low)) if self._low <= truth <= self._high else 0.0


class ProjectionSearch:
    """Raises its part of one projection of the range check: it then fails below a number that the server knows."""

    spec, opens = RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING

    def __init__(self) -> None:
        self._bits, self._chance = 0.0, 0.0

    def updates(self, seed: int) -> dict[str, Ring]:
        return updates_of(seed, (0.5, 1.0, 0.5, 0.6, 0.7, 0.4))

    def ask(self, measured: Measured, share: float) -> Falsehood | None:
        # The chance that a projection of a random update, as long as the clip norm, is below each threshold.
        deviation = PARAMETERS.encoded_norm * np.sqrt(0.5)
        chances = [float(norm.cdf(one / deviation)) for one in measured.own_thresholds()]
        chosen = min(range(len(chances)), key=lambda i: abs(chances[i] - share))
        self._chance = chances[chosen]
        return Falsehood(raised=chosen)

    def answered(self, stays: bool) -> None:
        self._bits -= math.log2(1 - self._chance if stays else self._chance)

    def bits(self, measured: Measured) -> float:
        return self._bits


class GapSearch:
    """Adds to all squared distances of one site what makes multi-Krum leave it out, or just not."""

    spec, opens = RuleSpec(name=RuleName.MULTI_KRUM, byzantine=1), Needs.PAIRS

    def __init__(self) -> None:
        self._least, self._most = -0.5 * _SQUARED, float(_SQUARED)
        self._low, self._high, self._middle = self._least, self._most, 0.0

    def updates(self, seed: int) -> dict[str, Ring]:
        draw = np.random.default_rng(seed).uniform(0.3, 0.6, len(SITES))
        return updates_of(seed, tuple(float(x) for x in draw))

    def ask(self, measured: Measured, share: float) -> Falsehood | None:
        self._middle = (self._low + self._high) / 2
        return Falsehood(added=math.floor(self._middle))

    def answered(self, stays: bool) -> None:
        if stays:
            self._low = self._middle
        else:
            self._high = self._middle

    def bits(self, measured: Measured) -> float:
        found = self._low > self._least and self._high < self._most
        return math.log2((self._most - self._least) / (self._high - self._low)) if found else 0.0


Search: TypeAlias = NormSearch | ProjectionSearch | GapSearch
_SEARCHES: Final[Mapping[Question, type[Search]]] = {
    Question.NORM: NormSearch,
    Question.PROJECTION: ProjectionSearch,
    Question.GAP: GapSearch,
}


FORMAT: Final = "moiety-leak/1"
CLAUSE: Final = {"protocol.policy.clauses.check_left_out_twice": passes}
ROUNDS: Final = 30


@dataclass(frozen=True)
class Asked:
    """One question with its rounds and defences: see :class:`LeakLine`."""

    question: Question
    clause: bool = True
    rounds: int = ROUNDS

    @property
    def plans(self) -> tuple[int, int]:
        """Numbers of failures that a server may plan to spend: as many as a site bears, or as if it bore any number."""
        return (TIMES_LEFT_OUT, self.rounds + 1)


class LeakLine(Line):
    """``bits`` about one site's update, in at most ``rounds`` rounds, by a plan that means to spend ``failures``.

    ``clause``: whether the site goes by the clause on sites left out twice. ``asked`` and ``failed``: rounds in which
    the server asked, and in which the site was left out with a failed check that all sites see. ``caught``: the round,
    counted from 1, in which impossible opened values showed the requester that a server deviates; it ends the study.
    """

    format: str = FORMAT
    question: Question
    clause: bool
    failures: int
    rounds: int
    seed: int
    bits: float
    asked: int
    failed: int
    caught: int | None
    seconds: float
    versions: dict[str, str]


@dataclass(frozen=True)
class Learned:
    """The result of one study; see :class:`LeakLine`."""

    bits: float
    asked: int
    failed: int
    caught: int | None


def leak_line(asked: Asked, failures: int, seed: int) -> LeakLine:
    """Run one study, with the clause on sites left out twice or without it."""
    with timed() as seconds:
        with nullcontext() if asked.clause else taken_out(CLAUSE):
            found = asdict(learned(asked, failures, seed))
        return LeakLine(
            **asdict(asked),
            failures=failures,
            seed=seed,
            **found | {"bits": round(found["bits"], 4)},
            seconds=seconds(),
            versions=program_versions(),
        )


def learned(asked: Asked, failures: int, seed: int) -> Learned:
    """Run one study with the defences as they are in this process; ``seed`` draws updates, shares and challenges."""
    search = _SEARCHES[asked.question]()
    selects = rule_for(search.spec, batch_size=16, grid=PARAMETERS.weight_grid).selects
    memory, questions, failed, spent, caught = SiteMemory(), 0, 0, 0, None
    for number in range(1, asked.rounds + 1):
        measured = _measured(search, seed, number)
        share = share_that_fails(asked.rounds + 1 - number, max(0, failures - spent))
        takes_part = selects or _takes_part(number, memory)  # a rule that selects turns the clause off
        if not takes_part or (falsehood := search.ask(measured, share)) is None:
            break
        questions += 1
        try:
            judged = measured.judged(falsehood, number)
        except ProtocolViolation:  # the opened values are impossible
            caught = number
            break
        stays = VICTIM in judged.measured.took_part
        search.answered(stays)
        released = (REQUESTER, *judged.measured.took_part)
        memory = remember_left_out(memory, number, SITES, released, judged.failed, own=VICTIM)
        spent += not stays
        failed += VICTIM in judged.failed
    return Learned(search.bits(_measured(search, seed, 0)), questions, failed, caught)


def _measured(search: Search, seed: int, number: int) -> Measured:
    return Measured(search.spec, search.opens, search.updates(seed), derive(bytes([seed % 256]) * 32, str(number)))


def most(question: Question, seeds: Sequence[int]) -> float:
    """Bits, mean over seeds, by whichever plan tells more, with the defences as they are in this process."""
    asked = Asked(question)
    return max(mean(learned(asked, failures, seed).bits for seed in seeds) for failures in asked.plans)


@dataclass(frozen=True)
class Leaked:
    """Means over seeds: bits with their standard deviation, rounds asked in, failed checks; by which plan.

    ``caught``: the number of studies in which the server was.
    """

    failures: int
    seeds: int
    bits: float
    deviation: float
    asked: float
    failed: float
    caught: int

    def __str__(self) -> str:
        return f"{self.bits:.1f} ± {self.deviation:.1f}"


def leaked(lines: Sequence[LeakLine]) -> Leaked:
    """Summarise the plan with most bits in the mean. Requires: lines of one question"""
    plans = {one.failures: [line for line in lines if line.failures == one.failures] for one in lines}
    return max(map(_over, plans.values()), key=lambda one: one.bits)


def _over(lines: Sequence[LeakLine]) -> Leaked:
    bits = [line.bits for line in lines]
    return Leaked(
        failures=lines[0].failures,
        seeds=len(lines),
        bits=mean(bits),
        deviation=stdev(bits) if len(bits) > 1 else 0.0,
        asked=mean(line.asked for line in lines),
        failed=mean(line.failed for line in lines),
        caught=sum(line.caught is not None for line in lines),
    )
