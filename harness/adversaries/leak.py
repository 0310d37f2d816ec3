"""A study of falsified rounds: what the server has learned when the site leaves, the rounds are over, or it is caught.

Canary rounds are not in the protocol (docs/adr/0026-falsified-products-stay-open.md); here they are rounds whose
updates are drawn anew and known to the requester, which ends the study when anything else is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Final, TypeAlias

import numpy as np
import typer
from pydantic import BaseModel, ConfigDict

from client_agent.requester.measuring.judging import Judgement
from harness.adversaries.catalogue.attack import passes, taken_out
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
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_names, parse_seeds
from harness.versions import versions
from host.commands.subcommand import command
from host.placed_files import writable
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.policy.clauses import TIMES_LEFT_OUT
from protocol.rules.registry import rule_for

FORMAT: Final = "moiety-leak/1"
LeakKey: TypeAlias = tuple[Question, bool, int, float, int, int]


class LeakLine(BaseModel):
    """``bits`` about one site's update, in at most ``rounds`` rounds, by a plan that means to spend ``failures``.

    ``clause``: whether the site goes by the clause on sites left out twice. ``canaries``: the chance of a round to be a
    canary. ``asked`` and ``failed``: rounds in which the server asked, and in which the site was left out with a failed
    check that all sites see. ``caught``: the round, counted from 1, in which what was opened showed the requester that
    a server deviates, which ends the study: in a canary round anything but what it knows, in others what cannot be.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
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
    def key(self) -> LeakKey:
        """What tells a line from another."""
        return (self.question, self.clause, self.failures, self.canaries, self.rounds, self.seed)


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


@dataclass(frozen=True)
class Asked:
    """What is asked, and against what: see :class:`LeakLine`."""

    question: Question
    clause: bool = True
    canaries: float = 0.0
    rounds: int = 30

    def of(self, line: LeakLine) -> bool:
        return (line.question, line.clause, line.canaries, line.rounds) == (
            self.question,
            self.clause,
            self.canaries,
            self.rounds,
        )


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
    """By the plan with most bits in the mean, or by one plan alone; None without lines."""
    plans: dict[int, list[LeakLine]] = {}
    for line in lines:
        if asked.of(line) and failures in (None, line.failures):
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


@dataclass(frozen=True)
class _Leak:
    """Falsify products in a study of many rounds, one question per round, and count the bits that the answers tell."""

    questions: Annotated[str, typer.Option(help=f"What is asked, separated by commas: {', '.join(Question)}.")] = (
        ",".join(Question)
    )
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0-39"
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of the study.")] = ROUNDS
    canaries: Annotated[str, typer.Option(help="Share of canary rounds, such as 1/30 or 0.1; 0 as it is.")] = "0"
    without_clause: Annotated[
        bool, typer.Option("--without-clause", help="The site stays however often it was left out, in this process.")
    ] = False
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False

    @property
    def asked(self) -> list[Asked]:
        """Raises: ConfigurationError"""
        names = parse_names(self.questions, "--questions")
        unknown = [name for name in names if name not in tuple(Question)]
        if unknown:
            raise ConfigurationError(f"--questions: found {', '.join(unknown)}; they are {', '.join(Question)}")
        share = share_of_canaries(self.canaries)
        return [Asked(Question(name), not self.without_clause, share, self.rounds) for name in names]


def share_of_canaries(text: str) -> float:
    """``1/30`` or ``0.1`` as a share below 1. Raises: ConfigurationError"""
    try:
        share = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share < 1:
        raise ConfigurationError(f"--canaries: found {text!r}; give a share of the rounds below 1, such as 1/30 or 0.1")
    return float(share)


def _count(given: _Leak) -> None:
    for asked in given.asked:
        lines = []
        for failures in plans(asked.rounds):
            for seed in parse_seeds(given.seeds):
                run = LeakRun(asked.question, asked.clause, failures, seed, asked.canaries, asked.rounds)
                lines.append(run.line())
                if given.out is not None:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    append_line(given.out, lines[-1])
                if given.as_json:
                    typer.echo(lines[-1].model_dump_json())
        found = leaked(lines, asked)
        if found is not None and not given.as_json:
            typer.echo(
                f"{asked.question}: {found} bits about one site's update, mean and standard deviation over "
                f"{found.seeds} seeds; asked in {found.asked:.1f} of {asked.rounds} rounds, {found.failed:.1f} failed "
                f"checks that all sites see, caught in a canary round in {found.caught} studies"
            )


leak: Final = command(_Leak, _count)
