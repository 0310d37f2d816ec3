"""``moiety attack``: a catalogue of named attacks, and reconstruction from a whole study; what they find."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from client_agent.cli.tables import console as console_for
from harness.adversaries.attack_line import AttackLine
from harness.adversaries.attacked_study import AS_IT_IS, AttackedRun, Setting
from harness.adversaries.falsifying.leak_command import leak
from harness.adversaries.gaining.lies import Lie
from harness.adversaries.gaining.lying_run import LyingRun
from harness.adversaries.inferring_commands import differencing, inversion, membership
from harness.adversaries.locating.locating_run import LocatingRun
from harness.adversaries.over_case import OverCase
from harness.adversaries.reconstruction import Prior
from harness.simulation.options import parse_names, parse_seeds
from host.commands.subcommand import command
from host.placed_files import writable
from protocol.errors import ConfigurationError


class _Named(TyperGroup):
    """``moiety attack NAME``: every attack of the catalogue is a command, beside those that have options of their own.

    The catalogue is loaded when somebody asks for a name, since it needs servers, agents and torch.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401  # typer keeps a click of its own
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        from harness.adversaries.catalogue import catalogue
        from harness.adversaries.outcomes import command_of

        if cmd_name not in catalogue():
            near = get_close_matches(cmd_name, (*catalogue(), *self.commands), n=3)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise typer.BadParameter(f"no attack is called {cmd_name!r}; {meant}moiety attack --list names them all")
        return typer.main.get_command(command_of(catalogue()[cmd_name]))


app = typer.Typer(cls=_Named, help="Attack the protocol, and print what holds.")


@app.callback(invoke_without_command=True)
def _attack(
    ctx: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Name every attack and what should hold.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run every attack, one after the other.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", callback=writable, help="File for what was found, as JSON.")
    ] = None,
) -> None:
    """Attack the protocol: --list, --all, or the NAME of one attack. Ends with 1 where a promise does not hold."""
    if ctx.invoked_subcommand is not None:
        return
    from harness.adversaries import outcomes

    if listed:
        outcomes.show_list()
    elif everything:
        raise typer.Exit(outcomes.run_all(json_file))
    else:
        typer.echo(ctx.get_help())


@dataclass(frozen=True)
class _Reconstruction(OverCase):
    """Run a study, then let every party estimate every other site's updates from the sums and lists it has."""

    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise the first.")] = None


def _reconstruct(asked: _Reconstruction) -> None:
    console = console_for(stderr=asked.as_json)
    for case, seed, requester in asked.runs():
        for variant in case.names[:1] if asked.only is None else parse_names(asked.only, "--only"):
            line = AttackedRun(case, variant, AS_IT_IS, requester, seed, asked.data, asked.rounds).line()
            asked.keep(line)
            if asked.as_json:
                typer.echo(line.model_dump_json())
            else:
                _show(console, line)


def _named(name: str) -> Lie:
    """Raises: ConfigurationError"""
    if name not in tuple(Lie):
        raise ConfigurationError(f"--lies: found {name!r}; the lies are {', '.join(Lie)}")
    return Lie(name)


@dataclass(frozen=True)
class _Lies(OverCase):
    """Run a study honestly, then with sites that lie to gain weight and harm, and say what they gained."""

    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise all.")] = None
    lies: Annotated[str | None, typer.Option(help="Which lies, separated by commas; otherwise all.")] = None
    liars: Annotated[int, typer.Option(min=1, help="How many contributors lie.")] = 1
    clip_norm: Annotated[float | None, typer.Option(help="Replaces the study's: a liar is as long as that.")] = None


def _lie(asked: _Lies) -> None:
    chosen = tuple(Lie) if asked.lies is None else tuple(_named(name) for name in parse_names(asked.lies, "--lies"))
    clip = asked.clip_norm
    setting = AS_IT_IS if clip is None else Setting("clipped", {"parameters": {"clip_norm": clip}})
    for case, seed, requester in asked.runs():
        for variant in case.names if asked.only is None else parse_names(asked.only, "--only"):
            run = LyingRun(case, variant, setting, requester, seed, chosen, asked.liars, asked.data, asked.rounds)
            for line in run.lines():
                lie = "honest" if line.lie is None else line.lie.value
                asked.told(
                    line,
                    f"{line.study}, {variant}, requester {requester}, seed {seed}, {lie}: share {line.weight:.3f}, "
                    f"moved {line.moved:.3g} of {line.path:.3g}, log-loss {line.harm:+.4f}",
                )


@dataclass(frozen=True)
class _Distances(OverCase):
    """Run a study, then locate every site's updates by their distances to the requester's and its accomplices'."""

    only: Annotated[str, typer.Option(help="A variant that sums everybody.")] = "fedavg"
    colluders: Annotated[str, typer.Option(help="Numbers of accomplices, separated by commas.")] = "0,1,2"
    every: Annotated[int, typer.Option(min=1, help="All pairs are opened in every so-manieth round.")] = 1


def _locate(asked: _Distances) -> None:
    counts = parse_seeds(asked.colluders)
    for case, seed, requester in asked.runs():
        run = LocatingRun(case, asked.only, AS_IT_IS, requester, seed, counts, asked.every, asked.data, asked.rounds)
        line = run.line()
        cells = "; ".join(
            f"{one.colluders} {one.points.value}: {one.single:.3f}, {one.together:.3f}" for one in line.located
        )
        head = f"{line.study}, requester {requester}, seed {seed}, {line.parameters} parameters"
        asked.told(line, f"{head}; colluders: error from one round, from all: {cells}")


app.command("reconstruction")(command(_Reconstruction, _reconstruct))
app.command("lies")(command(_Lies, _lie))
app.command("distances")(command(_Distances, _locate))
app.command("inversion")(inversion)
app.command("membership")(membership)
app.command("differencing")(differencing)
app.command("leak")(leak)


def _show(console: Console, line: AttackLine) -> None:
    """Median and least error over rounds, by site, for the requester alone."""
    head = f"{line.study}, {line.variant}, requester {line.requester}, seed {line.seed}"
    console.print(
        f"{head}: {len(line.rounds)} sums over {line.lists} different lists; relative error of the requester's "
        "estimates, median (least) over rounds",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("site", *(prior.value for prior in Prior), box=None)
    for site in line.weight:
        table.add_row(site, *(cell(line, prior, site) for prior in Prior))
    console.print(table)


def cell(line: AttackLine, prior: Prior, site: str) -> str:
    found = line.by((line.requester,), prior)
    median, least = (None, None) if found is None else (found.median(site), found.least(site))
    return "" if median is None or least is None else f"{median:.3f} ({least:.3f})"
