"""A case: one study file with the data it is run on and the variants that are compared.

    [case]           data set, split, requesters, seeds, the sites' policy
    [model] [rule] [training] [parameters], name, rounds    as in every study file
    [[variant]]      name, and what it changes in [model], [rule], [training], [parameters] and rounds; [variant.tune]
                     lists values to choose from

Runs are variants x requesters x seeds.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import Field

from client_agent.learning.scores import METRICS, MetricName
from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.datasets.registry import path_of
from harness.datasets.site_folders import folder_digest
from harness.engine.algorithms import BaselineTable
from harness.engine.run_state import EVERYBODY, Attendance
from harness.simulate.study_files import (
    ChosenModel,
    ChosenRule,
    StudyFile,
    chosen_model,
    chosen_rule,
    package_of,
    read_study_file,
    without_package,
)
from host.extensions import FOLDER, Kind, is_brought
from host.frozen import Frozen
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy

Round = Annotated[int, Field(ge=1)]


class AttendanceTable(Frozen, strict=True):
    """``late``: site -> the first round that it can be listed in. ``missed``: site -> rounds in which it was listed and
    sends nothing. ``dropout``: the chance that a contributor misses a round, drawn anew for every seed, site and round.
    """

    late: dict[str, Round] = {}
    missed: dict[str, list[Round]] = {}
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def require_sites(self, names: Collection[str], source: str) -> None:
        """Raises: ConfigurationError for a site that there is not"""
        unknown = sorted((self.late.keys() | self.missed.keys()) - set(names))
        if unknown:
            raise ConfigurationError(
                f"{source}: [case.attendance]: {unknown[0]!r} is no site; the sites are {', '.join(names)}"
            )

    def attendance(self, sites: Collection[str], rounds: int, seed: int) -> Attendance:
        """Return the attendance of a run over so many rounds, and as many of class counts; the requester is always
        there.
        """
        if self == ALL_THERE:
            return EVERYBODY
        missed = {(number, site) for site, numbers in self.missed.items() for number in numbers}
        for site in sites:
            drawn = random.Random(f"attendance {seed} {site}")  # noqa: S311  # a simulation's dice
            missed |= {(number, site) for number in range(1, 2 * rounds + 1) if drawn.random() < self.dropout}
        return Attendance(tuple(self.late.items()), frozenset(missed))


ALL_THERE: Final = AttendanceTable()


CHANGEABLE: Final = ("model", "rule", "training", "parameters")
BASELINE: Final = "baseline"
TuneValue = float | int | str
Opened = Literal["distances", "norms", "pairs", "inner_products"]


class PolicyTable(Frozen, strict=True):
    """The sites' policy in every run of the case (docs/protocol.md 9); the default is every site's own default."""

    least_contributors: Annotated[int, Field(ge=1)] = SitePolicy().least_contributors
    largest_share: Annotated[float, Field(gt=0, le=1)] = SitePolicy().largest_share
    least_isolation: Annotated[float, Field(ge=0, le=1)] = SitePolicy().least_isolation
    may_open: list[Opened] = list(get_args(Opened))

    def policy(self) -> SitePolicy:
        return SitePolicy(
            least_contributors=self.least_contributors,
            largest_share=self.largest_share,
            least_isolation=self.least_isolation,
            may_open=tuple(Needs(opened) for opened in self.may_open),
        )


class CaseTable(Frozen, strict=True):
    """``[case]``. ``dirichlet`` deals all training examples anew, by label; ``whitened`` whitens the features by the
    moments of all training parts. Of every training part only ``training_share`` is there. ``validation_share`` of the
    requester's training part is split off, to choose settings on, in tuning runs and in runs of variants that keep it.
    Settings are chosen for all requesters together, or by each one. ``judged_by`` is the metric that settings and
    rounds are chosen on, and the first that is shown; None is the task's first. The last round's metrics have
    intervals over ``bootstrap`` draws, 0: none.
    """

    data: str
    split: str = ""
    sites: Annotated[int, Field(ge=2)] | None = None
    dirichlet: Annotated[float, Field(gt=0)] | None = None
    whitened: bool = False
    training_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    requesters: Literal["first", "each"] | list[str] = "first"
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    tuning_seeds: list[Annotated[int, Field(ge=0)]] = []
    tuned_for: Literal["all_requesters", "each_requester"] = "all_requesters"
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    judged_by: Annotated[MetricName, Field(strict=False)] | None = None
    bootstrap: Annotated[int, Field(ge=0, le=100_000)] = 0
    metrics: list[str] = []
    policy: PolicyTable = PolicyTable()
    attendance: AttendanceTable = AttendanceTable()


class VariantTable(Frozen, strict=True):
    """``[[variant]]``. A ``rule`` with a name replaces the study's; everything else is laid over it, key by key.

    After ``alone_after`` rounds the requester goes on alone: local fine-tuning. ``pooled``: it trains alone on all
    sites' training parts together, which only a simulation can. ``baseline`` takes FedAvg's place.
    ``finish`` and ``privacy`` are the study's tables.
    ``policy`` is the sites' in place of the case's: for rules from before there were any.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    keeps_validation: bool = False
    alone_after: Annotated[int, Field(ge=1)] | None = None
    pooled: bool = False
    baseline: BaselineTable | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    finish: dict[str, Any] | None = None
    privacy: dict[str, Any] | None = None
    policy: PolicyTable | None = None
    model: dict[str, Any] = {}
    rule: dict[str, Any] = {}
    training: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    tune: dict[str, list[TuneValue]] = {}


Settings: TypeAlias = Mapping[str, TuneValue]
"""Tuned keys, such as ``rule.distance_penalty``, and a value for each."""
UNTUNED: Final[Settings] = {}


@dataclass(frozen=True)
class Variant:
    """One of the things compared, with its whole study, checked.

    ``digest`` covers all of the file that decides this variant's results, as it was written, and the version of a
    package's rule; in ``study`` FedAvg stands in such a rule's place.
    """

    table: VariantTable
    study: StudyTable
    digest: str
    tables: Mapping[str, Any]
    policy: PolicyTable

    @property
    def name(self) -> str:
        return self.table.name

    def with_settings(self, settings: Settings, source: str) -> StudyTable:
        """The study with tuned keys set. Raises: ConfigurationError"""
        return checked_study_table(without_package(self._set(settings)), f"{source}: variant {self.name!r}")

    def chosen_rule(self, settings: Settings = UNTUNED) -> ChosenRule | None:
        """The package's rule with tuned keys set, None where the rule is one of the protocol's."""
        return chosen_rule(self._set(settings))

    @property
    def chosen_model(self) -> ChosenModel | None:
        """The model that others bring, None where it is a built-in one."""
        return chosen_model(self.tables)

    def _set(self, settings: Settings) -> dict[str, Any]:
        tables: dict[str, Any] = json.loads(json.dumps(self.tables))
        for name, value in settings.items():
            table, _, key = name.partition(".")
            if table != BASELINE:
                tables.setdefault(table, {})[key] = value
        return tables

    def baseline_with(self, settings: Settings, source: str) -> BaselineTable | None:
        """The baseline with tuned keys set. Raises: ConfigurationError"""
        mark = f"{BASELINE}."
        keys = {name.removeprefix(mark): value for name, value in settings.items() if name.startswith(mark)}
        baseline = self.table.baseline
        if baseline is None or not keys:
            return baseline
        where = f"{source}: variant {self.name!r}: baseline"
        return validated(type(baseline), {**baseline.model_dump(), **keys}, where)


@dataclass(frozen=True)
class Case:
    source: str
    name: str
    table: CaseTable
    variants: tuple[Variant, ...]

    @property
    def judged_by(self) -> MetricName:
        return self.table.judged_by or METRICS[self.variants[0].study.task.kind][0]

    def variant(self, name: str) -> Variant:
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ConfigurationError(f"{self.source}: no variant {name!r}; it has {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in self.variants)


def read_case(path: Path) -> Case:
    """Raises: ConfigurationError"""
    return case_of(read_study_file(path))


def parse_case(text: str, source: str) -> Case:
    """Raises: ConfigurationError"""
    return case_of(StudyFile(source, parse_toml(text, source)))


def case_of(file: StudyFile) -> Case:
    """A case file, each variant's study checked. Raises: ConfigurationError that names what is wrong"""
    source, tables = file.source, dict(file.tables)
    written, listed = tables.pop("case", None), tables.pop("variant", [])
    if not isinstance(written, dict) or not isinstance(listed, list):
        raise ConfigurationError(f"{source}: a case has one table [case] and one or more tables [[variant]]")
    if "seed" in tables:
        written = {"seeds": [tables["seed"]], **written}
    table = validated(CaseTable, written, f"{source}: [case]")
    parsed = [validated(VariantTable, one, f"{source}: [[variant]]") for one in listed]
    names = [one.name for one in parsed]
    if not names:
        raise ConfigurationError(f"{source}: there is nothing to run: give one or more tables [[variant]]")
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{source}: every [[variant]] has a name of its own, found {names}")
    variants = tuple(_variant(variant, tables, written, table, source) for variant in parsed)
    possible = METRICS[variants[0].study.task.kind]
    if not possible or table.judged_by not in (None, *possible):
        raise ConfigurationError(
            f"{source}: key 'case.judged_by': found {table.judged_by}, task {variants[0].study.task.kind.value!r} has "
            f"{', '.join(possible) or 'no metric of its own, and cases compare by one'}"
        )
    return Case(source, variants[0].study.name, table, variants)


def _variant(
    variant: VariantTable, base: Mapping[str, Any], case: Mapping[str, Any], table: CaseTable, source: str
) -> Variant:
    tables = json.loads(json.dumps(base, default=str))
    for part in CHANGEABLE:
        change = getattr(variant, part)
        replaced = part == "rule" and "name" in change
        tables[part] = {**({} if replaced else tables.get(part, {})), **change}
    replacing = ((part, getattr(variant, part)) for part in ("rounds", "finish", "privacy"))
    tables |= {part: given for part, given in replacing if given is not None}
    where = f"{source}: variant {variant.name!r}"
    for key, values in variant.tune.items():
        _check_tuned(key, values, bool(table.tuning_seeds), variant.baseline is not None, where)
    study = checked_study_table(without_package(tables), where)
    _require_together(variant, study, where)
    digest = _digest(variant, tables, case, _packages(tables, case, where))
    return Variant(variant, study, digest, tables, variant.policy or table.policy)


def _require_together(variant: VariantTable, study: StudyTable, where: str) -> None:
    if variant.alone_after is not None and variant.alone_after >= study.rounds:
        raise ConfigurationError(
            f"{where}: key 'alone_after': found {variant.alone_after}, the study has "
            f"{study.rounds} rounds, and some of them must be left to go on alone"
        )
    if study.finish is not None and (variant.alone_after or variant.baseline):
        raise ConfigurationError(f"{where}: 'finish' goes with neither 'alone_after' nor 'baseline'")
    if variant.baseline is not None and variant.alone_after:
        raise ConfigurationError(f"{where}: 'baseline' does not go with 'alone_after'")
    if variant.pooled and study.rule.name is not RuleName.LOCAL:
        raise ConfigurationError(
            f"{where}: key 'pooled': the rule is {study.rule.name.value!r}, and there is nobody left to weigh once all "
            'data are at one place; take rule = { name = "local" }'
        )


def _packages(tables: Mapping[str, Any], case: Mapping[str, Any], where: str) -> dict[str, tuple[str, str]]:
    """Return the packages, with versions, that bring the rule, the model and the data set; data in folders by their
    digest.

    Raises: ConfigurationError for what is not there
    """
    rule, model, data = chosen_rule(tables), chosen_model(tables), str(case.get("data", ""))
    found: dict[str, tuple[str, str]] = {}
    try:
        if rule is not None:
            found["package"] = rule.package
        if model is not None:
            found["model_package"] = package_of(Kind.MODEL, model.name)
        for name in case.get("metrics", []):
            found[f"metric_package {name}"] = package_of(Kind.METRIC, str(name))
        if data.startswith(FOLDER):
            found["data_folder"] = (data, folder_digest(path_of(data)))
        elif is_brought(data):
            found["data_package"] = package_of(Kind.DATASET, data)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.detail}") from None
    return found


def _digest(
    variant: VariantTable, tables: Mapping[str, Any], case: Mapping[str, Any], packages: dict[str, tuple[str, str]]
) -> str:
    """Return the digest of all that changes a run: not the seeds and requesters that are run, but the tuning seeds
    where there is a choice.
    """
    left_out = {"seeds", "requesters"} | (set() if variant.tune else {"tuning_seeds", "tuned_for"})
    deciding = {
        "study": tables,
        "case": {key: value for key, value in case.items() if key not in left_out},
        "tune": variant.tune,
        "keeps_validation": variant.keeps_validation,
    }
    # what is left out is not written down, so that digests of files from before a key came in stay as they are
    later = variant.model_dump(include={"alone_after", "baseline", "policy"}, exclude_none=True)
    deciding |= later | ({"pooled": True} if variant.pooled else {})
    deciding |= packages
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()


def _check_tuned(key: str, values: list[TuneValue], has_seeds: bool, has_baseline: bool, where: str) -> None:
    table, _, name = key.partition(".")
    known = (*CHANGEABLE, *((BASELINE,) if has_baseline else ()))
    if table not in known or not name or not values:
        raise ConfigurationError(
            f"{where}: key 'tune.{key}': give a key of {', '.join(known)}, such as \"rule.distance_penalty\", and "
            "at least one value"
        )
    if not has_seeds:
        raise ConfigurationError(f"{where}: tuning needs [case] tuning_seeds")
