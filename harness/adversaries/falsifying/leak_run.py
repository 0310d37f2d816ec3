"""A study of falsified rounds: what the server has learned when the site leaves, the rounds are over, or it is caught.

Canary rounds are not in the protocol (docs/adr/0026-falsified-products-stay-open.md); here they are rounds whose
updates are drawn anew and known to the requester, which ends the study when anything else is opened.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import mean
from typing import Final

import numpy as np

from client_agent.requester.measuring.judging import Judgement
from harness.adversaries.attack import passes, taken_out
from harness.adversaries.falsifying.leak_line import LeakKey, LeakLine
from harness.adversaries.falsifying.measured import PARAMETERS, REQUESTER, VICTIM, Falsehood, Measured
from harness.adversaries.falsifying.questions import SEARCHES, Left, Question, Search
from harness.adversaries.falsifying.victim import Victim
from harness.versions import versions
from protocol.arithmetic.prg import derive
from protocol.errors import ProtocolViolation
from protocol.policy.clauses import TIMES_LEFT_OUT
from protocol.rules.registry import rule_for

CLAUSE: Final = {"protocol.policy.clauses.check_left_out_twice": passes}
ROUNDS: Final = 30
_CANARY: Final = 10**6
"""Added to a seed for canaries' draws and updates."""


def plans(rounds: int) -> tuple[int, int]:
    """How many failures a server may mean to spend: as many as a site bears, or as if it bore any number."""
    return (TIMES_LEFT_OUT, rounds + 1)


@dataclass(frozen=True)
class Learned:
    """What came of one study; see :class:`LeakLine`."""

    bits: float
    asked: int
    failed: int
    caught: int | None


@dataclass(frozen=True)
class LeakRun:
    """One study; ``seed`` draws updates, shares, challenges and which rounds are canaries."""

    question: Question
    clause: bool
    failures: int
    seed: int
    canaries: float = 0.0
    rounds: int = ROUNDS

    @property
    def key(self) -> LeakKey:
        """As the line's that comes of it."""
        return (self.question, self.clause, self.failures, self.canaries, self.rounds, self.seed)

    def line(self) -> LeakLine:
        """Run it, without the clause where that is asked."""
        begun = time.monotonic()
        with nullcontext() if self.clause else taken_out(CLAUSE):
            found = self.learned()
        return LeakLine(
            question=self.question,
            clause=self.clause,
            failures=self.failures,
            canaries=self.canaries,
            rounds=self.rounds,
            seed=self.seed,
            bits=round(found.bits, 4),
            asked=found.asked,
            failed=found.failed,
            caught=found.caught,
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    def learned(self) -> Learned:
        """With the defences as they are in this process."""
        search, canary = SEARCHES[self.question](), np.random.default_rng(_CANARY + self.seed)
        victim = Victim(selects=rule_for(search.spec, batch_size=16, grid=PARAMETERS.weight_grid).selects)
        asked, failed, spent, caught = 0, 0, 0, None
        for number in range(1, self.rounds + 1):
            real = bool(canary.random() >= self.canaries)
            measured = self._measured(search, number, real=real)
            left = Left(self.rounds + 1 - number, max(0, self.failures - spent))
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
    """What the requester decides; None where it ends the study: what was opened cannot be, or not in a canary round."""
    try:
        if not real and measured.opened(falsehood) != measured.opened(Falsehood()):
            return None
        return measured.judged(falsehood, number)
    except ProtocolViolation:
        return None


def most(question: Question, seeds: Sequence[int], rounds: int = ROUNDS) -> float:
    """Bits, mean over seeds, by whichever plan tells more, with the defences as they are in this process."""
    return max(
        mean(LeakRun(question, True, failures, seed, rounds=rounds).learned().bits for seed in seeds)
        for failures in plans(rounds)
    )
