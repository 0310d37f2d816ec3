"""What a person types: the list of attacks, all of them, or one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from client_agent.cli.tables import console as console_for
from harness.adversaries.catalogue.attack import Attack, Party
from harness.adversaries.catalogue.catalogue import catalogue, has_ckks
from harness.adversaries.catalogue.outcome import Outcome, Outcomes, collected, table, tried, verdict
from harness.adversaries.outside import DeployedAttack, Deployment
from host.placed_files import rewrite, writable
from protocol.errors import ConfigurationError

_HELD, _NOT_HELD = 0, 1


def show_list() -> None:
    """Every attack, by who makes it: its name, what it tries and what should hold."""
    console = console_for(stderr=False)
    for party in Party:
        shown = Table("attack", "tries", "what should hold", title=party.value, title_justify="left", box=None)
        shown.columns[0].no_wrap = True
        for attack in (one for one in catalogue().values() if one.party is party):
            held = attack.defence if attack.promised else f"NOT PROMISED TO HOLD; {attack.defence}"
            anywhere = " (also on running servers: --roster)" if isinstance(attack, DeployedAttack) else ""
            shown.add_row(attack.name, attack.tries + anywhere, held)
        console.print(shown)
        console.print()
    _say_what_is_missing(console)


def run_all(json_file: Path | None) -> int:
    """All of them, one after the other. -> the exit code: 0 when everything is as the threat model says"""
    console, outcomes = console_for(stderr=False), []
    for attack in catalogue().values():
        outcomes.append(tried(attack))
        console.print(_line(outcomes[-1]), highlight=False, soft_wrap=True)
    found = collected(outcomes)
    _write(found, json_file)
    _summarise(console, found)
    _say_what_is_missing(console)
    return _HELD if all(one.as_documented for one in found.attacks) else _NOT_HELD


def _say_what_is_missing(console: Console) -> None:
    if not has_ckks():
        left_out = "attacks on the CKKS path are left out: TenSEAL is not installed; pip install 'moiety[he]'"
        console.print(left_out, markup=False, highlight=False, soft_wrap=True)


def command_of(attack: Attack) -> typer.Typer:
    """One attack as a command with its own help."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    said = f"{attack.party.value} {attack.tries}. What should hold: {attack.defence}. The figure: {attack.figure}."

    def run(
        json_file: Annotated[
            Path | None, typer.Option("--json", callback=writable, help="File for what was found, as JSON.")
        ] = None,
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
        _write(found, json_file)
        console_for(stderr=False).print(table(found.attacks))
        raise typer.Exit(_HELD if found.attacks[0].as_documented else _NOT_HELD)

    alone.command(attack.name, help=said[0].upper() + said[1:])(run)
    return alone


def _deployment(roster: Path, keys: Path | None, ca: Path | None, study: str) -> Deployment:
    if keys is None or ca is None or not study:
        raise ConfigurationError("--roster needs --keys, --ca and --study: a site's keys, a CA file, a study's name")
    return Deployment.named(roster, keys, ca, study)


def _line(outcome: Outcome) -> str:
    figure = outcome.error if outcome.figure is None else f"{outcome.figure:.3g} {outcome.figure_is}"
    note = f"; {outcome.note}" if outcome.note and (not outcome.held or outcome.promised is False) else ""
    return f"{verdict(outcome):34} {outcome.name:36} {figure}{note} ({outcome.seconds:.1f} s)"


def _summarise(console: Console, found: Outcomes) -> None:
    """How many held, and by name whatever the threat model does not say."""
    held = sum(one.held for one in found.attacks)
    admitted = [one.name for one in found.attacks if not one.held and not one.promised and not one.error]
    console.print(f"{len(found.attacks)} attacks in {found.seconds:.0f} s: {held} held")
    if admitted:
        console.print(f"reached, and named in docs/threat_model.md: {', '.join(admitted)}", soft_wrap=True)
    for one in found.attacks:
        if not one.as_documented:
            said = one.error or "a promise of docs/threat_model.md that does not hold here, or a limit that is gone"
            console.print(f"LOOK AT {one.name}: {said}", soft_wrap=True)


def _write(found: Outcomes, json_file: Path | None) -> None:
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        rewrite(json_file, found.model_dump_json(indent=1))
