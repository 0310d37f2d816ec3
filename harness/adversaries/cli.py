"""``moiety attack``: named attacks on studies that run in this process, and what they find."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.attacked_study import AS_IT_IS, AttackedRun
from harness.adversaries.reconstruction import Prior
from harness.datasets.registry import load_data
from harness.demo.live import console_for
from harness.simulation.case import read_case
from harness.simulation.case_run import request_for, requesters_of
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_names, parse_seeds

app = typer.Typer(no_args_is_help=True, help="Attack studies that run in this process.")


@app.callback()
def _attack() -> None:
    """Attack studies that run in this process."""


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
