"""``moiety attack inversion``, ``membership``, ``differencing``: what the privacy page measures, one run at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from harness.adversaries.attacked_study import Setting
from harness.adversaries.differencing.differenced_run import DifferencedRun
from harness.adversaries.inferring.memorised_run import MemorisedRun
from harness.adversaries.inverting.inverted_run import InvertedRun
from harness.adversaries.inverting.targets import TARGETS
from harness.adversaries.over_case import OverCase
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_names, parse_seeds
from host.placed_files import writable
from host.subcommand import command
from protocol.errors import ConfigurationError

_BY_KEY: Final = {target.key: target for target in TARGETS}


@dataclass(frozen=True)
class _Inversion:
    """Read records out of an average of gradients, by rows over biases and by descent, beside guessing."""

    targets: Annotated[str, typer.Argument(help=f"Data and model, separated by commas: {', '.join(_BY_KEY)}.")]
    sites: Annotated[str, typer.Option(help="Numbers of sites in the average, separated by commas.")] = "1,2,4,8"
    batches: Annotated[str, typer.Option(help="Records of each site, separated by commas.")] = "1,8,32"
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0"
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False

    def runs(self) -> list[InvertedRun]:
        """Raises: ConfigurationError"""
        names = parse_names(self.targets, "TARGETS")
        unknown = [name for name in names if name not in _BY_KEY]
        if unknown:
            raise ConfigurationError(f"found {', '.join(unknown)}; data and model are one of {', '.join(_BY_KEY)}")
        return [
            InvertedRun(_BY_KEY[name], sites, batch, seed, self.data)
            for name in names
            for sites in parse_seeds(self.sites)
            for batch in parse_seeds(self.batches)
            for seed in parse_seeds(self.seeds)
        ]


def _invert(asked: _Inversion) -> None:
    for run in asked.runs():
        line = run.line()
        if asked.out is not None:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            append_line(asked.out, line)
        cells = ", ".join(f"{one.how.value} {one.exact:.3f} ({one.close:.3f})" for one in line.attacks)
        head = f"{line.target}, {line.sites} sites of {line.batch} records, seed {line.seed}"
        typer.echo(line.model_dump_json() if asked.as_json else f"{head}: read exactly (closely): {cells}")


@dataclass(frozen=True)
class _Membership(OverCase):
    """Train a case over a random half of every site's records, and tell which half that was, round by round."""

    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise all.")] = None


def _tell_members(asked: _Membership) -> None:
    for case, seed, _ in asked.runs():
        for variant in case.names if asked.only is None else parse_names(asked.only, "--only"):
            line = MemorisedRun(case, variant, seed, asked.data, asked.rounds).line()
            best = max((one.auc for one in line.by_average), default=float("nan"))
            asked.told(
                line,
                f"{line.study}, {variant}, seed {seed}: accuracy on members {line.known:.3f}, on others "
                f"{line.unknown:.3f}; area under the curve by loss {line.by_loss[-1].auc:.3f}, by the average that "
                f"tells most {best:.3f}",
            )


@dataclass(frozen=True)
class _Differencing(OverCase):
    """Open two sums that differ by one site, and compare the error of the difference with the sites' isolation."""

    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise the first.")] = None
    least: Annotated[int, typer.Option(min=1, help="So many contributors are enough for a sum.")] = 2


def _subtract(asked: _Differencing) -> None:
    setting = Setting("asked", {"parameters": {"least_contributors": asked.least}}, least_isolation=0.0)
    for case, seed, requester in asked.runs():
        for variant in case.names[:1] if asked.only is None else parse_names(asked.only, "--only"):
            line = DifferencedRun(case, variant, setting, requester, seed, asked.data).line()
            asked.told(
                line,
                f"{line.study}, {variant}, requester {requester}, seed {seed}: without {line.site} the difference is "
                f"off by {line.difference:.3f}, the best estimate by {line.achieved:.3f}; isolation said "
                f"{line.predicted:.3f}",
            )


inversion: Final = command(_Inversion, _invert)
membership: Final = command(_Membership, _tell_members)
differencing: Final = command(_Differencing, _subtract)
