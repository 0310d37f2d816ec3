"""``simulate``: a case or a study from Python, with what the command line has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from harness.api.results import Results
from harness.api.studies import Case, Study
from harness.simulation.case import Case as CheckedCase
from harness.simulation.case_run import CaseOptions, CaseProgress, run_case
from harness.simulation.options import ALL_RUNS, parse_shard
from harness.simulation.run_one import Protection
from harness.simulation.summary import summarise_case, write_summary
from harness.tracking.trackers import log_all, tracker_of
from harness.training.device import Computing
from host.extensions import load_plugins
from protocol.errors import ConfigurationError

T = TypeVar("T")


def simulate(
    what: Case | Study | str | Path,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    data_folder: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    requesters: Sequence[str] | None = None,
    protection: str = "plain",
    jobs: int = 1,
    shard: str | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
    track: Sequence[str] = (),
    show: Callable[[CaseProgress], None] = lambda progress: None,
) -> Results:
    """Do every run that ``out`` does not hold yet; returns all runs asked for.

    what            a case, a case file or the name of one that comes along; or a study, with ``data``, a data set
    out             where runs are kept, and gone on with; None keeps nothing
    data_folder     the public data files (or MOIETY_DATA)
    seeds, only, requesters, protection, jobs, shard, device    as the command's options
    plugins         Python files with data sets, models, rules and metrics of one's own
    track           tensorboard, mlflow: where else finished runs go, with ``out``
    show            is told how far it is

    Raises: ConfigurationError that says what is wrong and what to do
    """
    load_plugins(Path(path) for path in plugins)
    case = _case(what, data)
    if protection not in list(Protection):
        raise ConfigurationError(f"protection: found {protection!r}, allowed are {', '.join(Protection)}")
    if track and out is None:
        raise ConfigurationError("track: give out, the folder that it is written to")
    trackers = [tracker_of(name, Path(out)) for name in track if out is not None]
    with tempfile.TemporaryDirectory() as scratch:
        options = CaseOptions(
            Path(scratch if out is None else out),
            None if data_folder is None else Path(data_folder),
            _some(seeds, "seeds"),
            _some(only, "only"),
            Protection(protection),
            jobs,
            computing=Computing.chosen(device, None),
            requesters=_some(requesters, "requesters"),
            shard=ALL_RUNS if shard is None else parse_shard(shard),
        )
        lines = run_case(case, options, show)
        if out is not None:
            write_summary(summarise_case(lines), lines, options.out)
            log_all(trackers, lines)
    return Results(lines)


def _case(what: Case | Study | str | Path, data: str | None) -> CheckedCase:
    if isinstance(what, Study):
        if data is None:
            raise ConfigurationError(f"study {what.name!r}: give data, the name of a data set, or put it into a Case")
        return Case(what, data).checked()
    if data is not None:
        raise ConfigurationError(f"data: found {data!r}, but a case says itself what data it is run on: leave it out")
    return (what if isinstance(what, Case) else Case.read(what)).checked()


def _some(given: Sequence[T] | None, what: str) -> tuple[T, ...] | None:
    """A list that was given holds something, and nothing twice. Raises: ConfigurationError"""
    if given is None:
        return None
    if isinstance(given, str) or not given or len(set(given)) != len(given):
        raise ConfigurationError(f"{what}: found {given!r}; give a list, every one once")
    return tuple(given)
