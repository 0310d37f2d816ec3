"""``moiety attack``: a catalogue of named attacks, and reconstruction from a whole study; what they find."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.attacked_study import AS_IT_IS, AttackedRun
from harness.adversaries.reconstruction import Prior
from harness.datasets.registry import load_data
from harness.demo.live import console_for
from harness.simulation.case import read_case
from harness.simulation.case_run import request_for, requesters_of
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_names, parse_seeds


class _Named(TyperGroup):
    """``moiety attack NAME``: every attack of the catalogue is a command, beside those that have options of their own.

    The catalogue is loaded when somebody asks for a name, since it needs servers, agents and torch.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401  # typer keeps a click of its own
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        from harness.adversaries.catalogue.catalogue import catalogue
        from harness.adversaries.catalogue.command import command_of

        return typer.main.get_command(command_of(catalogue()[cmd_name])) if cmd_name in catalogue() else None


app = typer.Typer(cls=_Named, help="Attack the protocol, and print what holds.")


@app.callback(invoke_without_command=True)
def _attack(
    ctx: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Name every attack and what should hold.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run every attack, one after the other.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for what was found, as JSON.")] = None,
) -> None:
    """Attack the protocol: --list, --all, or the NAME of one attack. Ends with 1 where a promise does not hold."""
    if ctx.invoked_subcommand is not None:
        return
    from harness.adversaries.catalogue import command

    if listed:
        command.show_list()
    elif everything:
        raise typer.Exit(command.run_all(json_file))
    else:
        typer.echo(ctx.get_help())


@app.command()
def reconstruction(
    study_file: Annotated[Path, typer.Argument(help="A case, such as harness/studies/breast_cancer.toml.")],
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas; the case's first one.")] = None,
    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise the first.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="At most so many rounds.")] = None,
    out: Annotated[Path | None, typer.Option(help="File that the JSON lines are added to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of tables.")] = False,
) -> None:
    """Run a study, then let every party estimate every other site's updates from the sums and lists it has."""
    console = console_for(stderr=as_json)
    case = read_case(study_file)
    chosen = case.names[:1] if only is None else parse_names(only, "--only")
    seeds_chosen = case.table.seeds[:1] if seeds is None else parse_seeds(seeds)
    requesters = requesters_of(case, load_data(request_for(case, data, None, case.table.seeds[0])))
    for seed in seeds_chosen:
        for requester in requesters:
            for variant in chosen:
                line = AttackedRun(case, variant, AS_IT_IS, requester, seed, data, rounds).line()
                if out is not None:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    append_line(out, line)
                if as_json:
                    typer.echo(line.model_dump_json())
                else:
                    _show(console, line)


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
