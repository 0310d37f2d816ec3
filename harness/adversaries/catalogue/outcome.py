"""Attacks run and written down: what each found, in JSON and as a table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from structlog.testing import capture_logs

from harness.adversaries.catalogue.attack import Attack, Found, Party, taken_out
from harness.adversaries.outside import DeployedAttack, Deployment
from harness.versions import versions
from protocol.errors import ConfigurationError
from protocol.printable import printable

FORMAT: Final = "moiety-attacks/1"


class Outcome(BaseModel):
    """One attack. ``held``: it did not reach what it tries; ``error``: it could not be tried, so nothing held.

    ``promised``: whether docs/threat_model.md promises that it fails. ``defended``: whether the defence was there.
    ``note``: the figure's interval, or which of several messages went through, where there is such a thing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    party: Party
    tried: str
    defence: str
    defended: bool
    promised: bool
    held: bool
    figure: float | None
    figure_is: str
    seconds: float
    note: str = ""
    error: str = ""

    @property
    def as_documented(self) -> bool:
        """Held, or said not to hold; with an error neither."""
        return not self.error and self.held is self.promised if self.defended else not self.error and not self.held


class Outcomes(BaseModel):
    """A run of several attacks, as ``--json`` writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    attacks: tuple[Outcome, ...]
    seconds: float
    versions: dict[str, str]


def tried(attack: Attack, *, defended: bool = True, on: Deployment | None = None) -> Outcome:
    """Run one attack against a federation of its own, in a folder that is gone afterwards, or ``on`` running servers.

    Raises: ConfigurationError for an attack that runs on no servers but its own
    """
    if on is not None and (not defended or not isinstance(attack, DeployedAttack)):
        raise ConfigurationError(
            f"{attack.name} runs on a federation of its own alone, and so does any attack without its defence: leave "
            "out --roster"
        )
    began = time.perf_counter()
    error, figure, held, note = "", None, False, ""
    with tempfile.TemporaryDirectory(prefix="moiety-attack-") as folder:
        try:
            with capture_logs(), nullcontext() if defended else taken_out(attack.without):
                found = _found(attack, Path(folder), on)
        except Exception as failure:  # whatever it is, the attack was not tried, and that is no defence
            error = printable(f"{type(failure).__name__}: {failure}")
        else:
            figure, held, note = found.figure, not found.succeeded, printable(found.note)
    return Outcome(
        name=attack.name,
        party=attack.party,
        tried=attack.tries,
        defence=attack.defence,
        defended=defended,
        promised=attack.promised,
        held=held,
        figure=figure,
        figure_is=attack.figure,
        seconds=round(time.perf_counter() - began, 3),
        note=note,
        error=error,
    )


def _found(attack: Attack, folder: Path, on: Deployment | None) -> Found:
    if on is not None and isinstance(attack, DeployedAttack):
        return attack.on(on)
    return attack.attempt(folder)


def collected(outcomes: Iterable[Outcome]) -> Outcomes:
    attacks = tuple(outcomes)
    return Outcomes(
        attacks=attacks,
        seconds=round(sum(one.seconds for one in attacks), 3),
        versions={one.name: one.version for one in versions()},
    )


def verdict(outcome: Outcome) -> str:
    """In a word or two, for a person."""
    if outcome.error:
        return "NOT TRIED"
    if outcome.held:
        return "held"
    return "reached, as the threat model says" if outcome.defended and not outcome.promised else "REACHED"


def table(outcomes: Iterable[Outcome]) -> Table:
    """Name, party, verdict and figure of each."""
    shown = Table("attack", "by", "outcome", "figure", box=None)
    for one in outcomes:
        figure = one.error if one.figure is None else f"{one.figure:.3g} {one.figure_is}"
        shown.add_row(one.name, one.party.value, verdict(one), figure)
    return shown
