"""What every attack on a whole study asks for on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from harness.datasets.registry import load_data
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.store import append_line
from harness.simulate.study_files import parse_seeds
from host.placed_files import writable


@dataclass(frozen=True)
class OverCase:
    """What every attack on a whole study asks for."""

    study_file: Annotated[Path, typer.Argument(help="A case, such as harness/studies/breast_cancer.toml.")]
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas; the case's first one.")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="At most so many rounds.")] = None
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of tables.")] = False

    def runs(self) -> Iterator[tuple[Case, int, str]]:
        """The case with every seed and requester in turn. Raises: ConfigurationError"""
        case = read_case(self.study_file)
        requesters = requesters_of(case, load_data(request_for(case, self.data, None, case.table.seeds[0])))
        for seed in case.table.seeds[:1] if self.seeds is None else parse_seeds(self.seeds):
            for requester in requesters:
                yield case, seed, requester

    def keep(self, line: BaseModel) -> None:
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.out, line)

    def told(self, line: BaseModel, text: str) -> None:
        """Keep a line, and print it or what it says."""
        self.keep(line)
        typer.echo(line.model_dump_json() if self.as_json else text)
