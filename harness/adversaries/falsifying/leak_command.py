"""``moiety attack leak``: how many bits a server that falsifies products reads from who stays in the sum."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import typer

from harness.adversaries.falsifying.leak_run import ROUNDS, LeakRun, plans
from harness.adversaries.falsifying.leaked import Asked, leaked
from harness.adversaries.falsifying.questions import Question
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_names, parse_seeds
from host.placed_files import writable
from host.subcommand import command
from protocol.errors import ConfigurationError


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
