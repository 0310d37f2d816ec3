"""``moiety demo``: real processes on one machine, plain twins, further seeds, a table and a report.

Every rule that shares has a federation of its own, two servers and one agent per site, whose roster declares how many
examples each site has; its processes end, and the next ones follow.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from client_agent.learning.data import LocalData
from client_agent.study.plain_words import RULE_NAMES
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.datasets.heart_disease import heart_disease
from harness.datasets.site_data import Federation, describe
from harness.demo.report import LiveRun, print_accuracies, print_split, write_report
from harness.demo.results import DemoResult, RuleResult, StudyResult, write_summary
from harness.demo.studies import BREAST_CANCER, DIGITS, HEART_DISEASE, StudySettings, study_of
from harness.engine.history import RunHistory
from harness.engine.loop import run_protected, run_rounds
from harness.engine.updates import class_counts
from harness.federation.federated_run import FederatedRun, Traffic, measure, run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from harness.versions import versions
from harness.warm import warm
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, Study
from protocol.messages.purpose import USUAL_PROTECTION, StudyProtection
from protocol.policy.site_policy import SitePolicy

_FURTHER_SEEDS: Final = 4
_QUICK_ROUNDS: Final = 3
_QUICK_SEEDS: Final = 1
_HEART_FOLDER: Final = "heart_disease"


@dataclass(frozen=True)
class DataSet:
    """A data set, its settings, and why it is split as it is."""

    key: str
    settings: StudySettings
    load: Callable[[int], Federation]
    why: str


@dataclass(frozen=True)
class DemoOptions:
    """``rounds`` replaces the first study's; ``keep`` leaves the processes' folders and logs in the output folder."""

    out: Path
    data: Path | None = None
    rounds: int | None = None
    quick: bool = False
    seed: int = 0
    keep: bool = False
    protection: StudyProtection = USUAL_PROTECTION


BREAST_CANCER_SET: Final = DataSet(
    "breast_cancer",
    BREAST_CANCER,
    breast_cancer_five_hospitals,
    "Whom a hospital sees depends on how its patients come to it: a screening programme finds small tumours, a "
    "referral centre gets the large ones. Each hospital has a fixed share of every fifth of the tumours by radius, "
    "chosen before any model was trained.",
)
DIGITS_SET: Final = DataSet(
    "digits",
    DIGITS,
    digits_sites,
    "Every site sees three digits (20, 60 and 20 %), each next site's shifted by one, as in MNIST's distribution B: "
    "neighbours share two digits with the requester, far sites none, so personalisation has something to win.",
)


def data_sets(options: DemoOptions) -> tuple[DataSet, ...]:
    """Choose the data sets. Raises: ConfigurationError when ``--data`` is no folder this demo knows."""
    chosen = (BREAST_CANCER_SET, DIGITS_SET) if options.data is None else (_heart_disease_set(options.data),)
    return tuple(replace(one, settings=_shortened(one.settings, options, place)) for place, one in enumerate(chosen))


def run_demo(options: DemoOptions, console: Console) -> DemoResult:
    """Everything, from certificates to report.

    Raises: ConfigurationError; Unavailable when a process ends or a study is not over in time
    """
    begin = time.monotonic()
    if options.protection.plan.keyed:
        Scheme(CkksParameters())  # without TenSEAL no process is started
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = data_sets(options)
    torch.set_num_threads(1)
    warm()
    studies = tuple(_run_data_set(one, options, console) for one in chosen)
    result = DemoResult(studies, versions(), time.monotonic() - begin)
    write_summary(result, options.out / "summary.json")
    write_report(result, options.out / "report.html")
    for study in studies:
        print_accuracies(console, study)
    console.print(f"{result.seconds:.0f} s; see {options.out / 'report.html'} and {options.out / 'summary.json'}")
    return result


@dataclass(frozen=True)
class _Served:
    """The runs of one federation's processes."""

    runs: tuple[tuple[Study, FederatedRun], ...]
    traffic: Traffic
    processes: Mapping[str, int]
    seeded: bool


def _run_data_set(data_set: DataSet, options: DemoOptions, console: Console) -> StudyResult:
    """Every rule over processes; then, the processes gone, their twins in this one. Traffic is the first rule's."""
    federation = data_set.load(options.seed)
    print_split(console, federation, data_set.why)
    folder = options.out / "processes" / data_set.key if options.keep else Path(tempfile.mkdtemp(prefix="moiety-demo-"))
    if options.keep and folder.exists():
        shutil.rmtree(folder)
    try:
        served = [
            _serve(data_set, federation, rules, folder / "_".join(rules), options, console)
            for rules in _federations(_rules(federation, options.protection))
        ]
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    with console.status("the same seeds without protection, and further seeds, in this process"):
        results = tuple(
            _with_twins(study, run, data_set, federation, options) for one in served for study, run in one.runs
        )
    return StudyResult(
        key=data_set.key,
        title=federation.title,
        why_this_split=data_set.why,
        class_names=federation.class_names,
        split=describe(federation),
        rules=results,
        traffic=served[0].traffic,
        processes=served[0].processes,
        seeded=served[0].seeded,
    )


def _federations(rules: tuple[RuleName, ...]) -> tuple[tuple[RuleName, ...], ...]:
    """A federation of its own for every rule that shares; training alone shares nothing, and goes with the last one.

    Sites remember the sums of all studies over their data, and a seeded demo computes the same updates in each: two
    lists over the same updates are what isolation refuses.
    """
    sharing = [rule for rule in rules if rule is not RuleName.LOCAL]
    alone = tuple(rule for rule in rules if rule is RuleName.LOCAL)
    return (*((rule,) for rule in sharing[:-1]), (*sharing[-1:], *alone))


def _serve(
    data_set: DataSet,
    federation: Federation,
    rules: tuple[RuleName, ...],
    folder: Path,
    options: DemoOptions,
    console: Console,
) -> _Served:
    with console.status("starting two servers and one agent per site"):
        running = RunningFederation(_spec(data_set.key, federation, options), folder)
    with running:
        pids = running.process_ids
        console.print("processes: " + ", ".join(f"{name} {pid}" for name, pid in pids.items()), soft_wrap=True)
        roster_digest = running.parties.roster.message.digest()
        runs: list[tuple[Study, FederatedRun]] = []
        for rule in rules:
            study = _study(data_set, federation, rule, roster_digest, options)
            rounds = study.rounds + rule.counts_classes
            with LiveRun(console, f"{federation.title}, {RULE_NAMES[rule]}", rounds) as live:
                runs.append((study, run_study(running, study, live.show)))
        traffic = measure(running, [run.history for _, run in runs], runs[0][0].parameters.dimension)
        running.stop()
    return _Served(tuple(runs), traffic, pids, running.spec.seed is not None)


def _with_twins(
    study: Study, run: FederatedRun, data_set: DataSet, federation: Federation, options: DemoOptions
) -> RuleResult:
    plain = run_rounds(study, federation.sites)
    further = tuple(_further(data_set, study, options.seed + n) for n in range(1, 1 + _further_seeds(options)))
    return RuleResult(study, run, plain, further)


def _rules(federation: Federation, protection: StudyProtection) -> tuple[RuleName, ...]:
    """The rules that are compared; WFedAvg only where every class has examples somewhere."""
    classes = len(federation.class_names)
    totals = [sum(counts) for counts in zip(*(class_counts(site, classes) for site in federation.sites), strict=True)]
    first = RuleName.WEIGHT_EROSION if protection.plan.opens else RuleName.WFEDAVG
    return tuple(rule for rule in (first, RuleName.FEDAVG, RuleName.LOCAL) if all(totals) or not rule.counts_classes)


def _further(data_set: DataSet, study: Study, seed: int) -> RunHistory:
    """Another seed, with another split and other batches: in one process, correlations from a dealer."""
    federation = data_set.load(seed)
    other = study.model_copy(update={"seed": seed})
    return run_protected(other, federation.sites, correlation_source="dealer")


def _study(
    data_set: DataSet, federation: Federation, rule: RuleName, roster_digest: str, options: DemoOptions
) -> Study:
    name = f"{data_set.settings.name}-{rule.value.replace('_', '-')}"
    return study_of(
        replace(data_set.settings, name=name), federation, rule, roster_digest, options.seed, options.protection
    )


def _spec(name: str, federation: Federation, options: DemoOptions) -> FederationSpec:
    policy = SitePolicy(allow_ckks=options.protection.plan.keyed)
    return FederationSpec(
        name=name.replace("_", "-"),
        requester=federation.requester.name,
        sites=tuple(
            SiteSpec(site.name, LocalData(site.train, site.test, names=federation.names), policy)
            for site in federation.sites
        ),
        seed=options.seed,
        bootstrap_samples=0,  # the report spreads over seeds
    )


def _heart_disease_set(folder: Path) -> DataSet:
    if folder.name != _HEART_FOLDER and not any(folder.glob("processed.*.data")):
        raise ConfigurationError(
            f"--data {folder}: not a Heart Disease folder; give the path of the folder {_HEART_FOLDER!r} that holds "
            "processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and processed.va.data"
        )
    return DataSet(
        "heart_disease",
        HEART_DISEASE,
        lambda seed: heart_disease(folder, seed),
        "Four real hospitals, as they are; each standardises by its own training part.",
    )


def _shortened(settings: StudySettings, options: DemoOptions, place: int) -> StudySettings:
    if options.quick:
        return replace(settings, rounds=min(settings.rounds, options.rounds or _QUICK_ROUNDS))
    return replace(settings, rounds=options.rounds) if options.rounds and place == 0 else settings


def _further_seeds(options: DemoOptions) -> int:
    return _QUICK_SEEDS if options.quick else _FURTHER_SEEDS
