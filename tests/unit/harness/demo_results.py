"""A small finished demo made in one process, for tests of what is written about it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from client_agent.site.events import RoundEnd, RoundRecord
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import describe
from harness.demo.results import DemoResult, RuleResult, StudyResult
from harness.demo.studies import BREAST_CANCER, study_of
from harness.engine.history import RoundKind, RunHistory
from harness.engine.loop import run_protected
from harness.federation.federated_run import FederatedRun, Traffic
from protocol.messages.control import RuleName, Study
from tests.kit.small_runs import run_plain

ROUNDS = 3
TRAFFIC = Traffic(
    contributor_rounds=10,
    parameters=62,
    up_bytes=62_000,
    down_bytes=124_000,
    up_body_bytes=6_200,
    down_body_bytes=9_300,
    between_servers_bytes=500_000,
    tls_versions=("TLSv1.3",),
    lock_to_release_s=0.25,
)


def records_of(history: RunHistory) -> tuple[RoundRecord, ...]:
    """The same rounds as an agent would have recorded them."""
    return tuple(
        RoundRecord(
            time_s=float(record.round),
            study=history.study,
            site=history.requester,
            round=record.round,
            state=RoundEnd.ALONE if record.kind is RoundKind.ALONE else RoundEnd.RELEASED,
            model_version=record.round,
            weights=record.handed_out,
            alphas=record.alphas,
            distances=record.distances,
            isolation=min((value.value for value in record.isolation), default=None),
            bytes_up=1000,
            bytes_down=234,
            seconds=0.5,
            test_accuracy=record.test_accuracy,
        )
        for record in history.rounds
    )


def federated(history: RunHistory) -> FederatedRun:
    seconds = tuple(0.5 for _ in history.rounds)
    return FederatedRun(history, sum(seconds), seconds, True, records_of(history))


def rule_result(rule: RuleName) -> RuleResult:
    data = breast_cancer_five_hospitals(0)
    study: Study = study_of(replace(BREAST_CANCER, rounds=ROUNDS), data, rule, "0" * 64, 0)
    secure = run_protected(study, data.sites, correlation_source="dealer")
    plain = run_plain(study, data.sites)
    other = breast_cancer_five_hospitals(1)
    further = run_plain(study.model_copy(update={"seed": 1}), other.sites)
    return RuleResult(study, federated(secure), plain, (further,))


@lru_cache(maxsize=1)
def demo_result() -> DemoResult:
    data = breast_cancer_five_hospitals(0)
    study = StudyResult(
        key="breast_cancer",
        title="tumours & <hospitals>",
        why_this_split="fixed beforehand",
        class_names=data.class_names,
        split=describe(data),
        rules=tuple(rule_result(rule) for rule in (RuleName.WEIGHT_EROSION, RuleName.FEDAVG, RuleName.LOCAL)),
        traffic=TRAFFIC,
        processes={"operator-a": 101, "operator-b": 102},
        seeded=True,
    )
    return DemoResult((study,), {"python": "3.11"}, 12.0)
