"""``simulate``: a case or a study from Python, with what the command line has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from harness.api.results import Results
from harness.api.studies import Case, Study
from harness.simulate.case import Case as CheckedCase
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.run_one import Protection
from harness.simulate.study_files import ALL_RUNS, parse_shard
from harness.simulate.summary import summarise_case, write_summary
from harness.simulate.tracking import log_all, tracker_of
from harness.simulate.workers import RayCluster, computing_of
from host.extensions import load_plugins
from protocol.errors import ConfigurationError

T = TypeVar("T")


class Options(TypedDict, total=False):
    """The options of :func:`simulate`, each as the command's option of that name."""

    data: str
    """Of a study: the name of its data set."""
    data_folder: str | Path
    """The public data files (or MOIETY_DATA)."""
    seeds: Sequence[int]
    only: Sequence[str]
    requesters: Sequence[str]
    protection: str
    jobs: int
    ray: RayCluster
    """A Ray cluster that does the runs, instead of ``jobs`` processes."""
    shard: str
    device: str
    plugins: Sequence[str | Path]
    """Python files with data sets, models, rules and metrics of one's own."""
    track: Sequence[str]
    """``tensorboard``, ``mlflow``: where else finished runs go, with ``out``."""
    show: Callable[[CaseProgress], None]
    """Is told how far it is."""


def simulate(what: Case | Study | str | Path, out: str | Path | None = None, **options: Unpack[Options]) -> Results:
    """Do every run that ``out`` does not hold yet; returns all runs asked for.

    what      a case, a case file or the name of one that comes along; or a study, with ``data``, a data set
    out       where runs are kept, and gone on with; None keeps nothing
    options   by name: data, data_folder, seeds, only, requesters, protection, jobs, ray, shard, device, plugins, track,
              show (:class:`harness.api.running.Options`)

    Raises: ConfigurationError that says what is wrong and what to do
    """
    _require_known(options)
    load_plugins(Path(path) for path in options.get("plugins", ()))
    case = _case(what, options.get("data"))
    track = options.get("track", ())
    if track and out is None:
        raise ConfigurationError("track: give out, the folder that it is written to")
    trackers = [tracker_of(name, Path(out)) for name in track if out is not None]
    with tempfile.TemporaryDirectory() as scratch:
        asked = _asked(Path(scratch if out is None else out), options)
        lines = run_case(case, asked, options.get("show", lambda progress: None))
        if out is not None:
            write_summary(summarise_case(lines), lines, asked.out)
            log_all(trackers, lines)
    return Results(lines)


def _require_known(options: Options) -> None:
    unknown = sorted(options.keys() - Options.__annotations__.keys())
    if unknown:
        raise ConfigurationError(f"simulate takes no {unknown[0]!r}; it takes {', '.join(Options.__annotations__)}")


def _asked(out: Path, options: Options) -> CaseOptions:
    ray = options.get("ray")
    protection, shard, data = options.get("protection", "plain"), options.get("shard"), options.get("data_folder")
    if protection not in list(Protection):
        raise ConfigurationError(f"protection: found {protection!r}, allowed are {', '.join(Protection)}")
    return CaseOptions(
        out,
        None if data is None else Path(data),
        _some(options.get("seeds"), "seeds"),
        _some(options.get("only"), "only"),
        Protection(protection),
        options.get("jobs", 1),
        computing=computing_of(ray, options.get("device", "cpu" if ray is None else "auto"), None),
        requesters=_some(options.get("requesters"), "requesters"),
        shard=ALL_RUNS if shard is None else parse_shard(shard),
        cluster=ray,
    )


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
