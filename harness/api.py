"""The Python interface for researchers: ``from moiety import Case, Study, simulate`` and what else is in ``__all__``.

A case or a study has the same tables as a TOML file, checked when it is run; results are pandas frames.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from harness.simulate.case import Case as CheckedCase
from harness.simulate.case import case_of
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.run_line import RunLine, Values
from harness.simulate.run_one import Protection
from harness.simulate.store import RESULTS
from harness.simulate.store import Results as ResultFolder
from harness.simulate.study_files import StudyFile, parse_shard, read_study_file
from harness.simulate.summary import CaseSummary, SummaryRow, metric_figure, remarks_on, summarise_case, write_summary
from harness.simulate.workers import RayCluster, computing_of
from host.extensions import load_plugins
from protocol.errors import ConfigurationError
from protocol.text import counted

__all__ = ["Case", "RayCluster", "Results", "Study", "load_results", "simulate"]


Table = Mapping[str, Any]
_STUDY_KEYS: Final = ("name", "rounds", "model", "parameters", "rule", "training", "task")


@dataclass(frozen=True)
class Study:
    """The tables of a study file; ``others`` are its further keys and tables, such as ``list_every`` or ``privacy``.

    Without ``task`` the study predicts classes.
    """

    name: str
    rounds: int
    model: Table
    parameters: Table
    rule: Table = field(default_factory=lambda: {"name": "fedavg"})
    training: Table = field(default_factory=dict)
    others: Table = field(default_factory=dict)
    task: Table | None = None

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """A study file, or the name of one that comes along; of a case the study part. Raises: ConfigurationError"""
        file = read_study_file(Path(path))
        return _study_of({key: value for key, value in file.tables.items() if key not in ("case", "variant")}, file)

    @property
    def tables(self) -> dict[str, Any]:
        """As in the file."""
        own = {key: getattr(self, key) for key in _STUDY_KEYS}
        return {**self.others, **{key: value for key, value in own.items() if value is not None}}


@dataclass(frozen=True)
class Case:
    """A study, the data it is run on, and what is compared.

    ``data`` is a data set's name. ``variants``: a name and what it changes, as in ``[[variant]]``; without any, the
    study as it is, called by its rule. ``seeds``: None takes the study's own, or 0. ``others`` are further keys of
    ``[case]``.
    """

    study: Study
    data: str
    variants: Mapping[str, Table] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    others: Table = field(default_factory=dict)
    source: str = "a case in Python"

    @classmethod
    def read(cls, path: str | Path) -> Case:
        """A case file, or the name of one that comes along, such as ``heart_disease``. Raises: ConfigurationError"""
        file = read_study_file(Path(path))
        tables = dict(file.tables)
        case, variants = dict(tables.pop("case", {})), tables.pop("variant", [])
        if "data" not in case:
            raise ConfigurationError(f"{file.source} is no case: it has no table [case] with a data set")
        named = {str(variant["name"]): {k: v for k, v in variant.items() if k != "name"} for variant in variants}
        data, seeds = case.pop("data"), case.pop("seeds", None)
        return cls(_study_of(tables, file), data, named, seeds, case, file.source)

    @property
    def tables(self) -> dict[str, Any]:
        """As in the file."""
        variants = self.variants or {str(self.study.rule.get("name", "study")).rpartition(":")[2]: {}}
        case = {**self.others, "data": self.data, **({} if self.seeds is None else {"seeds": list(self.seeds)})}
        named = [{"name": name, **changes} for name, changes in variants.items()]
        return {**self.study.tables, "case": case, "variant": named}

    def checked(self) -> CheckedCase:
        """Raises: ConfigurationError that names the wrong key, what was found and what is allowed"""
        return case_of(StudyFile(self.source, self.tables))


def _study_of(tables: Table, file: StudyFile) -> Study:
    missing = [key for key in ("name", "rounds", "model", "parameters") if key not in tables]
    if missing:
        raise ConfigurationError(f"{file.source} is no study file: it has no key {missing[0]!r}")
    others = {key: value for key, value in tables.items() if key not in _STUDY_KEYS}
    return Study(**{key: tables[key] for key in _STUDY_KEYS if key in tables}, others=others)


Row = dict[str, Any]
BY_SITE: Final = ("alpha", "weight", "distance", "norm", "inner_product")
_OF_RUN: Final = (
    "case", "variant", "requester", "seed", "rule", "protection", "end", "reason", "released_rounds", "seconds",
    "study_digest", "data_digest", "code_digest",
)  # fmt: skip
_KEY: Final = ("variant", "requester", "seed")


@dataclass(frozen=True, repr=False)
class Results:
    """Finished runs of one case. What is not a number is missing in a frame (NaN)."""

    lines: tuple[RunLine, ...]

    def __repr__(self) -> str:
        cases = ", ".join(dict.fromkeys(line.case for line in self.lines)) or "nothing"
        runs = counted(len(self.lines), "run")
        return f"<Results of {cases}: {runs}; table(), plot(), runs(), rounds() and sites() show them>"

    def table(self) -> pd.DataFrame:
        """One row per variant and requester, over its seeds: the means of the case's metric and of what else was
        followed on the test part after the last round, with their standard errors, and what a reader must know.

        Raises: ConfigurationError without a run
        """
        found = self.summary()
        return pd.DataFrame([_summed(row, found.judged_by.value) for row in found.rows])

    def plot(self) -> Figure:
        """The case's metric over the rounds: a panel per requester, a curve per variant with a band of one standard
        error. ``plot().savefig("curves.png")`` keeps it.

        Raises: ConfigurationError without a run
        """
        self.summary()
        return metric_figure(self.lines)

    def runs(self) -> pd.DataFrame:
        """One row per run: what it was, its tuned settings, how it ended, and every measure after its last round."""
        return pd.DataFrame([_run(line) for line in self.lines])

    def rounds(self) -> pd.DataFrame:
        """One row per run and round, counted from 1."""
        return pd.DataFrame([row for line in self.lines for row in _rounds(line)])

    def sites(self) -> pd.DataFrame:
        """One row per run, round and contributor: whether it took part, its weights, and what was opened about it."""
        return pd.DataFrame([row for line in self.lines for row in _sites(line)])

    def summary(self) -> CaseSummary:
        """Means and standard errors over seeds, as in ``summary.json``. Raises: ConfigurationError without a run"""
        if not self.lines:
            raise ConfigurationError("there is no finished run to summarise")
        return summarise_case(self.lines)


def load_results(*folders: str | Path) -> Results:
    """The finished runs in folders of ``moiety simulate`` or of ``simulate``, those of each in their order.

    Raises: ConfigurationError for a folder without results, and for folders that are not of one case and one code
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not (path / RESULTS).is_file():
            raise ConfigurationError(f"{path} holds no {RESULTS}: give the folder that was --out of a case")
    lines = tuple(line for path in paths for line in ResultFolder(path).lines())
    if len({(line.case, line.protection, line.code_digest) for line in lines}) > 1:
        raise ConfigurationError(
            "these folders hold runs of two cases, two protections or two versions of the code, which are not mixed in "
            "one table: load them one by one"
        )
    return Results(lines)


def _summed(row: SummaryRow, metric: str) -> Row:
    found: Row = {"variant": row.variant, "requester": row.requester or "mean"}
    for name, figure in {metric: row.last_round, **row.scores}.items():
        found |= {name: figure.mean, f"{name}_se": figure.standard_error}
    return {**found, "runs": row.runs, "released_rounds": row.released_rounds, "remarks": ", ".join(remarks_on(row))}


def _key(line: RunLine) -> Row:
    return {name: getattr(line, name) for name in _KEY}


def _run(line: RunLine) -> Row:
    last = {name: values[-1] for name, values in line.by_round().items()}
    return {name: getattr(line, name) for name in _OF_RUN} | dict(line.settings) | last


def _rounds(line: RunLine) -> Iterator[Row]:
    series = line.by_round()
    for place, kind in enumerate(line.kind):
        numbers = {name: values[place] for name, values in series.items()}
        yield _key(line) | {"round": place + 1, "kind": kind, "contributors": len(line.took_part[place])} | numbers


def _sites(line: RunLine) -> Iterator[Row]:
    by_site: dict[str, dict[str, Values]] = {name: getattr(line, name) for name in BY_SITE}
    opened_of, took_part = (name for values in by_site.values() for name in values), itertools.chain(*line.took_part)
    names = dict.fromkeys(itertools.chain(opened_of, took_part))
    for place in range(len(line.kind)):
        for site in names:
            opened = {name: values[site][place] if site in values else None for name, values in by_site.items()}
            yield _key(line) | {"round": place + 1, "site": site, "took_part": site in line.took_part[place]} | opened


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
    ray: RayCluster | None = None,
    shard: str | None = None,
    device: str | None = None,
    plugins: Sequence[str | Path] = (),
    show: Callable[[CaseProgress], None] = lambda progress: None,
) -> Results:
    """Do every run that ``out`` does not hold yet; returns all runs asked for.

    what          a case, a case file or the name of one that comes along; or a study, with ``data``, a data set
    out           where runs are kept, and gone on with; None keeps nothing
    data_folder   the public data files (or MOIETY_DATA)
    ray           a Ray cluster that does the runs, instead of ``jobs`` processes
    plugins       Python files with data sets, models, rules and metrics of one's own
    show          is told how far it is

    The others are the command's options of that name. Raises: ConfigurationError that says what is wrong and what to do
    """
    load_plugins(map(Path, plugins))
    case = _case(what, data)
    if protection not in list(Protection):
        raise ConfigurationError(f"protection: found {protection!r}, allowed are {', '.join(Protection)}")
    with tempfile.TemporaryDirectory() as scratch:
        options = CaseOptions(
            Path(scratch if out is None else out),
            None if data_folder is None else Path(data_folder),
            _some(seeds, "seeds"),
            _some(only, "only"),
            Protection(protection),
            jobs,
            computing=computing_of(ray, device or ("cpu" if ray is None else "auto")),
            requesters=_some(requesters, "requesters"),
            shard=None if shard is None else parse_shard(shard),
            cluster=ray,
        )
        lines = run_case(case, options, show)
        if out is not None:
            write_summary(summarise_case(lines), lines, options.out)
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
