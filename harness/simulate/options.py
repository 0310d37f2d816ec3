"""Options of ``moiety simulate`` and its commands; this module loads nothing that a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

ProtectionName = Literal["plain", "secure", "ckks"]


def _list_studies(wanted: bool) -> None:
    if wanted:
        from harness.simulate.study_files import study_names

        typer.echo("\n".join(study_names()))
        raise typer.Exit


@dataclass(frozen=True)
class StudyOptions:
    """Run a study, or all runs of a case, without HTTP.

    In one process or several, over several seeds.

    Example: moiety simulate study.toml --data breast_cancer --seeds 0-4
    """

    study_file: Annotated[
        Path,
        typer.Argument(metavar="STUDY.TOML", help="A study as for 'study create', or a case."),
    ]
    data: Annotated[
        str | None,
        typer.Option(
            help="A study: breast_cancer (the default), digits, or a folder that holds one folder per site. A case: "
            "the folder with the public data sets (or MOIETY_DATA)."
        ),
    ] = None
    requester: Annotated[str | None, typer.Option(help="A study: the requester's folder, with a folder.")] = None
    seeds: Annotated[
        str | None, typer.Option(help="Whole numbers and ranges, such as 0-9,12. [the case's, the study's, or 0]")
    ] = None
    requesters: Annotated[
        str | None, typer.Option(help="A case: sites that are the requester in turn, separated by commas, or each.")
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(help="A case: i/n, only the i-th of n parts of all runs; 'simulate merge' joins them."),
    ] = None
    protection: Annotated[
        ProtectionName,
        typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he)."),
    ] = "plain"
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1
    address: Annotated[
        str | None, typer.Option(help="A case: runs are tasks of the Ray cluster at HEAD:PORT (extra scale).")
    ] = None
    cpus_per_run: Annotated[float | None, typer.Option(help="What a run asks of the Ray cluster. [1]")] = None
    gpus_per_run: Annotated[float | None, typer.Option(help="Likewise; 0.25: four runs share one. [0]")] = None
    site_plugin: Annotated[
        Path | None, typer.Option(help="A study: the Python file that sites would have as their plug-in.")
    ] = None
    save_model: Annotated[
        Path | None,
        typer.Option(help="A study: a new folder for the last model, as 'model export' makes it; by seed, if several."),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; a case goes on where it stopped. [simulated/<case>]")
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="A case: fetch missing public files into the data folder first.")
    ] = False
    energy: Annotated[
        str | None, typer.Option(help="Three-letter country: estimate energy and CO2 into OUT/energy.json.")
    ] = None
    device: Annotated[str, typer.Option(help="A case: auto, cpu, cuda or cuda:N; plain local SGD only.")] = "auto"
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A case: a Python file with RULES, DATASETS, MODELS, METRICS of your own; may be repeated."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    listed: Annotated[
        bool,
        typer.Option("--list", callback=_list_studies, is_eager=True, help="List the studies that come along."),
    ] = False


Data = Annotated[str, typer.Argument(help="A data set's name, as in a case's [case] table.")]
Split = Annotated[str, typer.Option(help="Which split of it.")]
Sites = Annotated[int | None, typer.Option(min=2, help="How many sites, where the data set leaves it open.")]
Folder = Annotated[Path | None, typer.Option("--data", envvar="MOIETY_DATA", help="Folder of the public data files.")]
Seed = Annotated[int, typer.Option(min=0, help="Fixes the split and every draw.")]


@dataclass(frozen=True)
class SummaryOptions:
    """Sum the tables of all sites: counts, means, SDs and histograms.

    Each table is protected before it is shared.

    Example: moiety simulate summary breast_cancer --sites 4
    """

    data: Data = "breast_cancer"
    split: Split = ""
    sites: Sites = None
    folder: Folder = None
    seed: Seed = 0
    protection: Annotated[ProtectionName, typer.Option(help="secure: shares at two servers; plain: added up.")] = (
        "secure"
    )
    least_examples: Annotated[int, typer.Option(min=10, help="Columns and categories of fewer are left out.")] = 10
    second_moments: Annotated[bool, typer.Option("--second-moments", help="Covariances too.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="The table as JSON.")] = False


@dataclass(frozen=True)
class SimilarityOptions:
    """Rank sites by how well their own models do on the requester's data.

    Every site trains alone. The requester learns these losses, and nothing else.

    Example: moiety simulate rank heart_disease --data DATA --requester cleveland
    """

    data: Data = "breast_cancer"
    split: Split = ""
    sites: Sites = None
    requester: Annotated[str | None, typer.Option(help="The site whose data the models are judged on.")] = None
    folder: Folder = None
    seed: Seed = 0
    protection: Annotated[ProtectionName, typer.Option(help="secure: only the losses open.")] = "secure"
    clip_norm: Annotated[float, typer.Option(help="Power of two that no site's model vector exceeds.")] = 16.0
    as_json: Annotated[bool, typer.Option("--json", help="The ranking as JSON.")] = False
