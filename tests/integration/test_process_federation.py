"""Federations of real processes: what the history of a run holds, and how a run breaks off."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.learning.data import LocalData
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import Federation
from harness.demo.studies import BREAST_CANCER, study_of
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.federated_run import run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.errors import Unavailable
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.kit.small_runs import run_plain
from tests.ports import free_ports
from tests.unlimited import LONG_BREAST_CANCER

pytestmark = [pytest.mark.slow, pytest.mark.uncounted]
DATA = breast_cancer_five_hospitals(0)
UNLIMITED = SitePolicy(least_isolation=0.0)
"""Sites remember the sums of all studies, twins in one process those of one only; and lists change every round."""


def spec_of(data: Federation, seed: int | None, policy: SitePolicy | None = None) -> FederationSpec:
    asked = policy or SitePolicy()
    sites = tuple(SiteSpec(site.name, LocalData(site.train, site.test, names=data.names), asked) for site in data.sites)
    return FederationSpec("federation", data.requester.name, sites, seed, ports=free_ports(), bootstrap_samples=0)


def study_for(federation: RunningFederation, rounds: int) -> Study:
    settings = replace(BREAST_CANCER, rounds=rounds)
    return study_of(settings, DATA, RuleName.WEIGHT_EROSION, federation.parties.roster.message.digest(), 0)


def test_the_history_holds_what_the_requester_saw_whatever_the_rule(tmp_path: Path) -> None:
    """Class counts, and pairs and norms: Mallows averaging opens both."""
    rules = {"counted": RuleSpec(name=RuleName.WFEDAVG), "measured": RuleSpec(name=RuleName.MALLOWS)}
    with RunningFederation(spec_of(DATA, 0, UNLIMITED), tmp_path) as federation:
        roster_digest = federation.parties.roster.message.digest()
        for name, rule in rules.items():
            study = study_of(replace(LONG_BREAST_CANCER, name=name, rounds=2), DATA, rule.name, roster_digest, 0)
            parameters = study.parameters.model_copy(update={"weight_grid": 2})
            study = study.model_copy(update={"rule": rule, "parameters": parameters})
            run = run_study(federation, study, lambda progress: None)
            plain = run_plain(study, DATA.sites, policy=UNLIMITED)
            assert (run.history.end, len(run.history.rounds)) == (plain.end, len(plain.rounds))
            for ours, theirs in zip(run.history.rounds, plain.rounds, strict=True):
                seen, expected = ((one.kind, one.took_part, one.failed_check) for one in (ours, theirs))
                assert seen == expected
                # fixed point moves a norm by less than sqrt(62) 2^-19 = 1.6e-5; the step of 0.3 takes that to round 2,
                # where a gradient changes by at most 193 (half the longest row squared) times as much
                assert [v.value for v in ours.norms] == pytest.approx([v.value for v in theirs.norms], abs=1e-3)
                assert [(p.first, p.second) for p in ours.pairs] == [(p.first, p.second) for p in theirs.pairs]
            # Under Mallows a site of weight 0 is in no sum and keeps the model before it.
            assert run.final_models_identical or name == "measured"


def test_a_study_that_stalls_and_a_process_that_dies_end_the_run_with_the_logs(tmp_path: Path) -> None:
    with RunningFederation(spec_of(DATA, 4), tmp_path) as federation:
        assert len(set(federation.process_ids.values())) == 7
        federation.kill(OPERATOR_NAMES[Side.B])
        with pytest.raises(Unavailable, match=r"(?s)no round ended in 3 s\noperator-a:\n.*\ncity-hospital:\n"):
            run_study(federation, study_for(federation, 3), lambda progress: None, stalled_s=3)
        federation.running["screening-centre"].process.send_signal(signal.SIGKILL)
        again = study_for(federation, 3).model_copy(update={"name": "again"})
        with pytest.raises(Unavailable, match="screening-centre ended with exit code -9"):
            run_study(federation, again, lambda progress: None)
