"""A study of falsified rounds: what the server has learned when the site leaves, the rounds are over, or it is caught.

Canary rounds are not in the protocol (docs/adr/0026-falsified-products-stay-open.md); here they are rounds whose
updates are drawn anew and known to the requester, which ends the study when anything else is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final, TypeAlias

import numpy as np

from client_agent.requester.measuring.judging import Judgement
from harness.adversaries.attack import passes, taken_out
from harness.adversaries.attacked_study import Line, program_versions, timed
from harness.adversaries.falsified_round import (
    PARAMETERS,
    REQUESTER,
    SEARCHES,
    VICTIM,
    Falsehood,
    Left,
    Measured,
    Question,
    Search,
    Victim,
)
from protocol.arithmetic.ring import derive
from protocol.errors import ProtocolViolation
from protocol.policy.clauses import TIMES_LEFT_OUT
from protocol.rules.registry import rule_for

FORMAT: Final = "moiety-leak/1"
CLAUSE: Final = {"protocol.policy.clauses.check_left_out_twice": passes}
ROUNDS: Final = 30
_CANARY: Final = 10**6
"""Added to a seed for canaries' draws and updates."""
LeakKey: TypeAlias = tuple[Question, bool, int, float, int, int]


@dataclass(frozen=True)
class Asked:
    """One question with its rounds and defences: see :class:`LeakLine`."""

    question: Question
    clause: bool = True
    canaries: float = 0.0
    rounds: int = ROUNDS

    @property
    def plans(self) -> tuple[int, int]:
        """Numbers of failures that a server may plan to spend: as many as a site bears, or as if it bore any number."""
        return (TIMES_LEFT_OUT, self.rounds + 1)


class LeakLine(Line):
    """``bits`` about one site's update, in at most ``rounds`` rounds, by a plan that means to spend ``failures``.

    ``clause``: whether the site goes by the clause on sites left out twice. ``canaries``: the chance of a round to be a
    canary. ``asked`` and ``failed``: rounds in which the server asked, and in which the site was left out with a failed
    check that all sites see. ``caught``: the round, counted from 1, in which what was opened showed the requester that
    a server deviates, which ends the study: in a canary round anything but what it knows, in others what cannot be.
    """

    format: str = FORMAT
    question: Question
    clause: bool
    failures: int
    canaries: float
    rounds: int
    seed: int
    bits: float
    asked: int
    failed: int
    caught: int | None
    seconds: float
    versions: dict[str, str]

    @property
    def answers(self) -> Asked:
        """The question that the study asked."""
        return Asked(self.question, self.clause, self.canaries, self.rounds)

    @property
    def key(self) -> LeakKey:
        """The question with its conditions, the plan and the seed."""
        return (self.question, self.clause, self.failures, self.canaries, self.rounds, self.seed)


@dataclass(frozen=True)
class Learned:
    """The result of one study; see :class:`LeakLine`."""

    bits: float
    asked: int
    failed: int
    caught: int | None


@dataclass(frozen=True)
class LeakRun:
    """One study; ``seed`` draws updates, shares, challenges and which rounds are canaries."""

    asked: Asked
    failures: int
    seed: int

    @property
    def key(self) -> LeakKey:
        """As the line's that comes of it."""
        asked = self.asked
        return (asked.question, asked.clause, self.failures, asked.canaries, asked.rounds, self.seed)

    def line(self) -> LeakLine:
        """Run it, without the clause where that is asked."""
        asked = self.asked
        with timed() as seconds:
            with nullcontext() if asked.clause else taken_out(CLAUSE):
                found = self.learned()
            return LeakLine(
                question=asked.question,
                clause=asked.clause,
                failures=self.failures,
                canaries=asked.canaries,
                rounds=asked.rounds,
                seed=self.seed,
                bits=round(found.bits, 4),
                asked=found.asked,
                failed=found.failed,
                caught=found.caught,
                seconds=seconds(),
                versions=program_versions(),
            )

    def learned(self) -> Learned:
        """With the defences as they are in this process."""
        search, canary = SEARCHES[self.asked.question](), np.random.default_rng(_CANARY + self.seed)
        victim = Victim(selects=rule_for(search.spec, batch_size=16, grid=PARAMETERS.weight_grid).selects)
        asked, failed, spent, caught = 0, 0, 0, None
        for number in range(1, self.asked.rounds + 1):
            real = bool(canary.random() >= self.asked.canaries)
            measured = self._measured(search, number, real=real)
            left = Left(self.asked.rounds + 1 - number, max(0, self.failures - spent))
            if not victim.takes_part(number) or (falsehood := search.ask(measured, left)) is None:
                break
            asked += 1
            judged = _judged(measured, falsehood, number, real=real)
            if judged is None:
                caught = number
                break
            stays = VICTIM in judged.measured.took_part
            search.answered(stays, about_the_update=real)
            victim.saw(number, (REQUESTER, *judged.measured.took_part), judged.failed)
            spent += not stays
            failed += VICTIM in judged.failed
        return Learned(search.bits(self._measured(search, 0, real=True)), asked, failed, caught)

    def _measured(self, search: Search, number: int, *, real: bool) -> Measured:
        updates = search.updates(self.seed if real else _CANARY * (1 + self.seed) + number)
        return Measured(search.spec, search.opens, updates, derive(bytes([self.seed % 256]) * 32, str(number)))


def _judged(measured: Measured, falsehood: Falsehood, number: int, *, real: bool) -> Judgement | None:
    """Return the requester's judgement; None where opened values are impossible, or wrong in a canary round."""
    try:
        if not real and measured.opened(falsehood) != measured.opened(Falsehood()):
            return None
        return measured.judged(falsehood, number)
    except ProtocolViolation:
        return None


def most(question: Question, seeds: Sequence[int]) -> float:
    """Bits, mean over seeds, by whichever plan tells more, with the defences as they are in this process."""
    asked = Asked(question)
    return max(mean(LeakRun(asked, failures, seed).learned().bits for seed in seeds) for failures in asked.plans)


# --- over seeds -------------------------------------------------------------------------------------------------------


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


def leaked(lines: Iterable[LeakLine], asked: Asked, failures: int | None = None) -> Leaked | None:
    """Summarise the plan with most bits in the mean, or one plan alone; None without lines."""
    plans: dict[int, list[LeakLine]] = {}
    for line in lines:
        if line.answers == asked and failures in (None, line.failures):
            plans.setdefault(line.failures, []).append(line)
    return max((_over(found) for found in plans.values()), key=lambda one: one.bits, default=None)


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
