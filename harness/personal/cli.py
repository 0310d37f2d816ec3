"""``moiety personal``: a comparison of personal models on all sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from client_agent.update import pick_device
from harness.live import console_for
from harness.personal.case import PersonalCase, Variant, read_personal_case
from harness.personal.plots import write_plots
from harness.personal.records import Evaluated, PersonalLine, ResultFolder
from harness.personal.run import Run, execute
from harness.personal.summary import summary_table
from harness.simulation.options import parse_seeds
from protocol.errors import ConfigurationError


def personal(
    case_file: Annotated[Path, typer.Argument(metavar="CASE.TOML", help="A file with a [personal] table.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; a run that was stopped goes on there.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets; default MOIETY_DATA.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Whole numbers separated by commas; default the file's.")] = None,
    only: Annotated[str | None, typer.Option(help="Variants separated by commas; default all.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    batched: Annotated[
        bool | None,
        typer.Option("--batched/--one-by-one", help="All sites' steps in one call; default on a GPU, not on a CPU."),
    ] = None,
) -> None:
    """iFedAvg, APFL, FedAvg, training alone and on pooled data, judged at every site."""
    case, folder, console = read_personal_case(case_file), ResultFolder(out), console_for(stderr=False)
    variants = case.only(tuple(only.split(",")) if only else ())
    chosen = pick_device(device)
    torch.set_num_threads(1)
    for seed in parse_seeds(seeds) if seeds else tuple(case.table.seeds):
        for variant in variants:
            name = f"{variant.table.name}, seed {seed}"
            if _finished(folder.lines(), case, variant, seed):
                continue

            def show(evaluated: Evaluated, name: str = name) -> None:
                test = evaluated.test
                console.print(f"{name}, round {evaluated.round}: F1 {test.mean_f1:.4f}, worst {test.worst_f1:.4f}")

            in_one_call = chosen.type == "cuda" if batched is None else batched
            execute(Run(case, variant, seed, data, chosen, in_one_call), folder, show)
    write_plots(case, folder)
    console.print(summary_table(folder.lines()))


def _finished(lines: tuple[PersonalLine, ...], case: PersonalCase, variant: Variant, seed: int) -> bool:
    """Whether the run has its line. Raises: ConfigurationError when that line is of another file"""
    for line in lines:
        if (line.variant, line.seed) == (variant.table.name, seed):
            if line.study_digest != variant.digest:
                raise ConfigurationError(
                    f"{case.source}: variant {line.variant!r} is not the one whose results are there: it was changed; "
                    "give another --out"
                )
            return True
    return False
