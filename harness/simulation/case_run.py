"""All runs of a case: planned, resumed, done over processes, and written down as they finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.correlations import SourceName
from harness.datasets.registry import DataRequest, load_data
from harness.simulation.case import Case, Setting, Variant
from harness.simulation.checkpoint import Checkpoint
from harness.simulation.jobs import RoundDone, run_all
from harness.simulation.run_one import PlannedRun, Protection, require_plain_for_same_round
from harness.simulation.runs import RunKey, RunLine
from harness.simulation.store import Results, finished
from protocol.errors import ConfigurationError


@dataclass(frozen=True)
class CaseOptions:
    """What the command line says about a case. None: as the case says, or all variants."""

    out: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    only: tuple[str, ...] | None = None
    protection: Protection = Protection.PLAIN
    jobs: int = 1
    correlation_source: SourceName | None = None


@dataclass(frozen=True)
class CaseProgress:
    """How far the runs are: ``rounds_done`` of ``rounds`` over all of them."""

    runs_done: int
    runs: int
    rounds_done: int
    rounds: int


def run_case(
    case: Case, options: CaseOptions, show: Callable[[CaseProgress], None] = lambda progress: None
) -> tuple[RunLine, ...]:
    """Do every run that ``options.out`` does not hold yet; returns the lines of all runs asked for, in their order.

    Raises: ConfigurationError for options that do not fit the case, or a folder with runs of a changed one
    """
    variants = tuple(case.variant(name) for name in options.only) if options.only else case.variants
    for variant in variants:
        require_plain_for_same_round(variant.study, options.protection, case.source)
    results = Results(options.out)
    with results.held():
        done = finished(results.lines(), case, options.protection.value, options.out)
        keys = _keys(case, options, variants)
        planned = [_planned(case, options, key, results, ()) for key in keys if key not in done]
        tally = _Tally(planned, len(keys) - len(planned), show)
        for one, line in run_all(planned, options.jobs, tally.round_done):
            results.append(line)
            Checkpoint(results.partial, str(one.key), "").remove()
            done[line.key] = line
            tally.run_done()
    return tuple(done[key] for key in keys)


def requesters_of(case: Case, data: Path | None) -> tuple[str, ...]:
    """The names of the sites that are the requester in turn. Raises: ConfigurationError"""
    wanted = case.table.requesters
    federation = load_data(request_for(case, data, None, case.table.seeds[0]))
    names = tuple(site.name for site in federation.sites)
    if wanted == "first":
        return names[:1]
    if wanted == "each":
        return tuple(sorted(names))
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        raise ConfigurationError(f"{case.source}: key 'case.requesters': found {wanted}, the sites are {list(names)}")
    return tuple(wanted)


def request_for(
    case: Case, data: Path | None, requester: str | None, seed: int, validation_share: float = 0.0
) -> DataRequest:
    """What a run of the case asks of its data set."""
    table = case.table
    return DataRequest(table.data, seed, table.split, table.sites, requester, validation_share, data)


def _keys(case: Case, options: CaseOptions, variants: Sequence[Variant]) -> tuple[RunKey, ...]:
    """Seeds outermost, so that an interrupted case has something of every variant."""
    seeds = options.seeds or tuple(case.table.seeds)
    requesters = requesters_of(case, options.data)
    return tuple(RunKey(v.name, requester, seed) for seed in seeds for requester in requesters for v in variants)


def _planned(
    case: Case, options: CaseOptions, key: RunKey, results: Results, settings: tuple[Setting, ...]
) -> PlannedRun:
    variant = case.variant(key.variant)
    share = case.table.validation_share if variant.keeps_validation else 0.0
    return PlannedRun(
        case.source,
        case.name,
        key,
        variant.with_settings(settings, case.source),
        request_for(case, options.data, key.requester, key.seed, share),
        case.table.policy.policy(),
        options.protection,
        variant.digest,
        settings,
        options.correlation_source,
        results.partial,
    )


class _Tally:
    """Counts rounds and runs for ``show``."""

    def __init__(self, planned: Sequence[PlannedRun], already: int, show: Callable[[CaseProgress], None]) -> None:
        self._rounds = {one.key: 0 for one in planned}
        self._total = sum(one.study.rounds for one in planned)
        self._already = already
        self._done = 0
        self._show = show

    def round_done(self, told: RoundDone) -> None:
        self._rounds[told.key] = told.rounds
        self._tell()

    def run_done(self) -> None:
        self._done += 1
        self._tell()

    def _tell(self) -> None:
        runs = len(self._rounds)
        self._show(
            CaseProgress(self._already + self._done, self._already + runs, sum(self._rounds.values()), self._total)
        )
