"""Every attack that can be run by its name, and what comes of it."""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from structlog.testing import capture_logs

from client_agent.cli.tables import console as console_for
from harness.attack import (
    chosen_queries,
    ckks_attacks,
    curious_servers,
    edge_floods,
    enrolment_attacks,
    hostile_messages,
    list_attacks,
    model_attacks,
    proxy_attacks,
    round_attacks,
    second_ends,
    sum_attacks,
    troubled_study,
    wrong_sums,
    wrong_updates,
)
from harness.attack.attack import Attack, Attempt, Party, taken_out
from harness.attack.attacked_study import program_versions
from harness.attack.signed_client import Deployment
from host.frozen import Frozen
from host.output_files import rewrite, writable
from protocol.errors import ConfigurationError
from protocol.text import printable

_MODULES: Final = (
    *(hostile_messages, wrong_updates, wrong_sums, round_attacks, second_ends, list_attacks, sum_attacks),
    *(model_attacks, chosen_queries, curious_servers, ckks_attacks, proxy_attacks, edge_floods),
    *(enrolment_attacks, troubled_study),
)
_WITH_TENSEAL: Final = ("ckks-", "ciphertext")


def has_ckks() -> bool:
    """Return whether attacks on ciphertexts can be tried here: TenSEAL comes with the extra ``he`` alone."""
    return find_spec("tenseal") is not None


@cache
def catalogue() -> dict[str, Attack]:
    """Name -> attack, in the order of ``attacks.csv``.

    Raises: ConfigurationError, where a row or an attempt stands alone, or a name is there twice
    """
    with Path(__file__).with_name("attacks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    attempts: dict[str, Attempt] = {}
    names = [row["name"] for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    for module in _MODULES:
        twice |= attempts.keys() & module.ATTEMPTS.keys()
        attempts |= module.ATTEMPTS
    odd = twice | (set(names) ^ attempts.keys())
    if odd:
        raise ConfigurationError(
            f"attacks.csv and ATTEMPTS differ, or have a name twice: {', '.join(sorted(odd))}; every attack has one "
            "row and one attempt"
        )
    return {
        row["name"]: Attack(
            row["name"],
            Party(row["party"]),
            row["promised"] == "yes",
            row["tries"],
            row["defence"],
            row["figure"],
            attempts[row["name"]],
        )
        for row in rows
        if has_ckks() or not row["name"].startswith(_WITH_TENSEAL)
    }


FORMAT: Final = "moiety-attacks/1"
_HELD, _NOT_HELD = 0, 1


class Outcome(Frozen):
    """One attack. ``held``: it did not reach what it tries; ``error``: it could not be tried, so nothing held.

    ``promised``: whether docs/threat_model.md promises that it fails. ``defended``: whether the defence was there.
    ``note``: the figure's interval, or which of several messages went through, where there is such a thing.
    """

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
        return not self.error and self.held is self.promised if self.defended else not self.error and not self.held

    @property
    def verdict(self) -> str:
        if self.error:
            return "NOT TRIED"
        if self.held:
            return "held"
        return "reached, as the threat model says" if self.defended and not self.promised else "REACHED"

    @property
    def shown_figure(self) -> str:
        return self.error if self.figure is None else f"{self.figure:.3g} {self.figure_is}"


class Outcomes(Frozen):
    """A run of several attacks, as ``--json`` writes it."""

    format: str = FORMAT
    attacks: tuple[Outcome, ...]
    seconds: float
    versions: dict[str, str]


def tried(attack: Attack, *, defended: bool = True, on: Deployment | None = None) -> Outcome:
    """Run one attack against a federation of its own, in a folder that is gone afterwards, or ``on`` running servers.

    Raises: ConfigurationError for an attack that runs on no servers but its own
    """
    at = attack.how.on
    if on is not None and (not defended or at is None):
        raise ConfigurationError(
            f"{attack.name} runs on a federation of its own alone, and so does any attack without its defence: leave "
            "out --roster"
        )
    began = time.perf_counter()
    error, figure, held, note = "", None, False, ""
    with tempfile.TemporaryDirectory(prefix="moiety-attack-") as folder:
        try:
            with capture_logs(), nullcontext() if defended else taken_out(attack.how.without):
                found = attack.how.run(Path(folder)) if on is None or at is None else at(on)
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


def collected(outcomes: Iterable[Outcome]) -> Outcomes:
    attacks = tuple(outcomes)
    return Outcomes(attacks=attacks, seconds=round(sum(one.seconds for one in attacks), 3), versions=program_versions())


def show_list() -> None:
    """Every attack, by who makes it: its name, what it tries and what should hold."""
    console = console_for(stderr=False)
    for party in Party:
        shown = Table("attack", "tries", "what should hold", title=party.value, title_justify="left", box=None)
        shown.columns[0].no_wrap = True
        for attack in (one for one in catalogue().values() if one.party is party):
            held = attack.defence if attack.promised else f"NOT PROMISED TO HOLD; {attack.defence}"
            anywhere = " (also on running servers: --roster)" if attack.how.on is not None else ""
            shown.add_row(attack.name, attack.tries + anywhere, held)
        console.print(shown)
        console.print()
    _say_what_is_missing(console)


def run_all(out: Path | None) -> int:
    """All of them, one after the other. -> the exit code: 0 when everything is as the threat model says"""
    console, outcomes = console_for(stderr=False), []
    for attack in catalogue().values():
        outcomes.append(tried(attack))
        console.print(line_of(outcomes[-1]), highlight=False, soft_wrap=True)
    found = collected(outcomes)
    _write(found, out)
    _summarise(console, found)
    _say_what_is_missing(console)
    return _HELD if all(one.as_documented for one in found.attacks) else _NOT_HELD


def command_of(attack: Attack) -> typer.Typer:
    """One attack as a command with its own help."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    said = f"{attack.party.value} {attack.tries}. What should hold: {attack.defence}. The figure: {attack.figure}."

    def run(
        out: Annotated[Path | None, typer.Option(callback=writable, help="File for what was found, as JSON.")] = None,
        defence_off: Annotated[
            bool, typer.Option("--defence-off", help="Without the defence, in this process alone: is the attack real?")
        ] = False,
        roster: Annotated[Path | None, typer.Option(help="Attack the servers of this roster, not a new pair.")] = None,
        keys: Annotated[Path | None, typer.Option(help="With --roster: a site's secret key file.")] = None,
        ca: Annotated[Path | None, typer.Option(help="With --roster: what the servers' certificates rest on.")] = None,
        study: Annotated[str, typer.Option(help="With --roster: a study of theirs.")] = "",
    ) -> None:
        on = None if roster is None else _deployment(roster, keys, ca, study)
        found = collected([tried(attack, defended=not defence_off, on=on)])
        _write(found, out)
        shown = Table("attack", "by", "outcome", "figure", box=None)
        for one in found.attacks:
            shown.add_row(one.name, one.party.value, one.verdict, one.shown_figure)
        console_for(stderr=False).print(shown)
        raise typer.Exit(_HELD if found.attacks[0].as_documented else _NOT_HELD)

    alone.command(attack.name, help=said[0].upper() + said[1:])(run)
    return alone


def _deployment(roster: Path, keys: Path | None, ca: Path | None, study: str) -> Deployment:
    if keys is None or ca is None or not study:
        raise ConfigurationError("--roster needs --keys, --ca and --study: a site's keys, a CA file, a study's name")
    return Deployment.named(roster, keys, ca, study)


def line_of(outcome: Outcome) -> str:
    note = f"; {outcome.note}" if outcome.note and (not outcome.held or outcome.promised is False) else ""
    return f"{outcome.verdict:34} {outcome.name:36} {outcome.shown_figure}{note} ({outcome.seconds:.1f} s)"


def _summarise(console: Console, found: Outcomes) -> None:
    held = sum(one.held for one in found.attacks)
    admitted = [one.name for one in found.attacks if not one.held and not one.promised and not one.error]
    console.print(f"{len(found.attacks)} attacks in {found.seconds:.0f} s: {held} held")
    if admitted:
        console.print(f"reached, and named in docs/threat_model.md: {', '.join(admitted)}", soft_wrap=True)
    for one in found.attacks:
        if not one.as_documented:
            said = one.error or "a promise of docs/threat_model.md that does not hold here, or a limit that is gone"
            console.print(f"LOOK AT {one.name}: {said}", soft_wrap=True)


def _say_what_is_missing(console: Console) -> None:
    if not has_ckks():
        left_out = "attacks on the CKKS path are left out: TenSEAL is not installed; pip install 'moiety[he]'"
        console.print(left_out, markup=False, highlight=False, soft_wrap=True)


def _write(found: Outcomes, out: Path | None) -> None:
    if out is not None:
        rewrite(out, found.model_dump_json(indent=1))
