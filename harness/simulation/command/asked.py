"""What a person asks of ``moiety simulate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.simulation.case_run import CaseOptions
from harness.simulation.options import ALL_RUNS, parse_names, parse_seeds, parse_shard
from harness.simulation.run_one import Protection
from harness.simulation.workers.cluster import Engine, cluster_of, computing_of
from protocol.errors import ConfigurationError


@dataclass(frozen=True)
class Asked:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""

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
        str | None, typer.Option(help="A case: i/n, only the i-th of n parts of all runs; moiety merge joins them.")
    ] = None
    protection: Annotated[
        Protection, typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he).")
    ] = Protection.PLAIN
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1
    engine: Annotated[
        Engine, typer.Option(help="A case: processes of this machine, or tasks of a Ray cluster (extra scale).")
    ] = Engine.PROCESSES
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; without: one of this machine alone, --jobs CPUs large.")
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
    batched: Annotated[
        bool | None,
        typer.Option(
            "--batched/--one-by-one",
            help="A case: all sites' steps of a round in one call; by default on a GPU only.",
        ),
    ] = None
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A case: a Python file with RULES, DATASETS, MODELS, METRICS of your own; may be repeated."),
    ] = None
    track: Annotated[
        str | None, typer.Option(help="A case: tensorboard, mlflow or both, separated by commas; into OUT.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    @property
    def folder(self) -> Path | None:
        return Path(self.data) if self.data else None

    @property
    def parsed_seeds(self) -> tuple[int, ...] | None:
        return parse_seeds(self.seeds) if self.seeds else None

    @property
    def variants(self) -> tuple[str, ...] | None:
        return parse_names(self.only, "--only") if self.only else None

    def case_options(self, out: Path) -> CaseOptions:
        """Raises: ConfigurationError"""
        cluster = cluster_of(self.engine, self.address, self.jobs, self.cpus_per_run, self.gpus_per_run)
        return CaseOptions(
            out,
            self.folder,
            self.parsed_seeds,
            self.variants,
            self.protection,
            self.jobs,
            computing=computing_of(cluster, self.device, self.batched),
            requesters=parse_names(self.requesters, "--requesters") if self.requesters else None,
            shard=parse_shard(self.shard) if self.shard else ALL_RUNS,
            cluster=cluster,
        )

    def out_for(self, what: str) -> Path:
        """Raises: ConfigurationError where no folder was given"""
        if self.out is None:
            raise ConfigurationError(f"{what} needs --out: the folder in which its runs are kept")
        return self.out
