"""Federations of real processes: what survives a kill, and what a seed fixes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import LocalData
from client_agent.site.events import read_metrics
from client_agent.site.journal import StudyJournal
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.datasets.site_data import Federation
from harness.demo.studies import BREAST_CANCER, DIGITS, study_of
from harness.engine.history import RoundKind, RunEnd
from harness.engine.loop import run_plain
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.federated_run import FederatedRun, run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.errors import Unavailable
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.ports import free_ports
from tests.unlimited import LONG_BREAST_CANCER

pytestmark = pytest.mark.slow
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


def one_run(folder: Path, seed: int | None, rounds: int, ports: tuple[int, int] | None = None) -> FederatedRun:
    with RunningFederation(replace(spec_of(DATA, seed), ports=ports or free_ports()), folder) as federation:
        return run_study(federation, study_for(federation, rounds), lambda progress: None)


def test_a_seed_fixes_everything_the_sites_compute(tmp_path: Path) -> None:
    ports = free_ports()
    first, again = (one_run(tmp_path / name, 7, 2, ports).history for name in ("first", "again"))
    assert first.final_model.tobytes() == again.final_model.tobytes()
    assert [r.distances for r in first.rounds] == [r.distances for r in again.rounds]
    assert [r.alphas for r in first.rounds] == [r.alphas for r in again.rounds]
    assert [r.isolation for r in first.rounds] == [r.isolation for r in again.rounds]
    everybody = {site.name for site in DATA.sites}
    assert all({found.site for found in record.isolation} == everybody for record in first.rounds)


def test_an_unseeded_federation_agrees_with_the_plain_run_while_its_weights_move(tmp_path: Path) -> None:
    """Every list but the first follows from what was opened in the round before. Without a seed every site orders its
    examples by itself, so a batch is all of them.
    """
    whole = LONG_BREAST_CANCER.training.model_copy(update={"batch_size": max(len(site.train) for site in DATA.sites)})
    settings = replace(LONG_BREAST_CANCER, training=whole, rounds=4, distance_penalty=0.05)
    with RunningFederation(spec_of(DATA, None, UNLIMITED), tmp_path) as federation:
        study = study_of(settings, DATA, RuleName.WEIGHT_EROSION, federation.parties.roster.message.digest(), 0)
        run = run_study(federation, study, lambda progress: None)
    ours, theirs = run.history.rounds, run_plain(study, DATA.sites, policy=UNLIMITED).rounds
    assert [r.kind for r in ours] == [RoundKind.RELEASED] * 4
    assert len({r.handed_out for r in theirs}) == 4
    assert [r.handed_out for r in ours] == [r.handed_out for r in theirs]
    # the distances are as close as in the next test; a weight takes 0.05 of that in each round
    for one, other in zip(ours, theirs, strict=True):
        assert [a.value for a in one.alphas] == pytest.approx([a.value for a in other.alphas], abs=2e-4)
    assert run.final_models_identical


def test_the_history_holds_what_the_requester_saw_whatever_the_rule(tmp_path: Path) -> None:
    rules = {
        "bounded": RuleSpec(name=RuleName.FEDAVG, norm_bound=2.5),
        "pairs": RuleSpec(name=RuleName.MULTI_KRUM),
        "counted": RuleSpec(name=RuleName.WFEDAVG),
    }
    with RunningFederation(spec_of(DATA, 0, UNLIMITED), tmp_path) as federation:
        roster_digest = federation.parties.roster.message.digest()
        for name, rule in rules.items():
            study = study_of(replace(LONG_BREAST_CANCER, name=name, rounds=2), DATA, rule.name, roster_digest, 0)
            parameters = study.parameters.model_copy(update={"weight_grid": 2})
            study = study.model_copy(update={"rule": rule, "parameters": parameters})
            run, plain = (
                run_study(federation, study, lambda progress: None),
                run_plain(study, DATA.sites, policy=UNLIMITED),
            )
            assert (run.history.end, len(run.history.rounds)) == (plain.end, len(plain.rounds))
            for ours, theirs in zip(run.history.rounds, plain.rounds, strict=True):
                assert (ours.kind, ours.took_part, ours.failed_check) == (
                    theirs.kind,
                    theirs.took_part,
                    theirs.failed_check,
                )
                # fixed point moves a norm by less than sqrt(62) 2^-19 = 1.6e-5; the step of 0.3 takes that to round 2,
                # where a gradient changes by at most 193 (half the longest row squared) times as much
                assert [v.value for v in ours.norms] == pytest.approx([v.value for v in theirs.norms], abs=1e-3)
                assert [(p.first, p.second) for p in ours.pairs] == [(p.first, p.second) for p in theirs.pairs]
            assert run.final_models_identical


def test_six_sites_under_mallows_complete_with_default_policies_and_nobody_declines(tmp_path: Path) -> None:
    """Rounds that measure, and sums by the lists that follow from them: as in one process, over servers and sockets."""
    data, rule = digits_sites(0, 6), RuleSpec(name=RuleName.MALLOWS, measure_every=3)
    settings = replace(DIGITS, rounds=4, least_contributors=3)
    with RunningFederation(spec_of(data, 0), tmp_path) as federation:
        study = study_of(settings, data, rule.name, federation.parties.roster.message.digest(), 0)
        study = study.model_copy(update={"rule": rule})
        run, plain = run_study(federation, study, lambda progress: None), run_plain(study, data.sites)
        ours, theirs = run.history.rounds, plain.rounds
        listed = {data.requester.name, *(weight.site for weight in ours[-1].handed_out)}
        models = {StudyJournal(federation.state(site), study.name).load_model(4).tobytes() for site in listed}
    assert run.history.end is plain.end is RunEnd.COMPLETED
    assert [r.kind.value for r in ours] == ["measured", "released", "released"] * 2 == [r.kind.value for r in theirs]
    assert [r.handed_out for r in ours] == [r.handed_out for r in theirs]
    assert [r.declined for r in ours] == [()] * 6
    for record, twin in zip(ours, theirs, strict=True):
        assert [(p.first, p.second) for p in record.pairs] == [(p.first, p.second) for p in twin.pairs]
    assert models == {run.history.final_model.tobytes()}
    np.testing.assert_allclose(run.history.final_model, plain.final_model, atol=1e-3)


def test_servers_killed_between_rounds_come_back_and_the_study_goes_on(tmp_path: Path) -> None:
    with RunningFederation(spec_of(DATA, 0), tmp_path) as federation:
        study = study_for(federation, 6)
        metrics = StudyJournal(federation.state(DATA.requester.name), study.name).folder / "metrics.jsonl"

        def rounds_are_done(number: int) -> bool:
            return len(read_metrics(metrics)) >= number

        def kill_both() -> None:
            for done, side in ((1, Side.A), (3, Side.B)):
                wait_until(partial(rounds_are_done, done))
                federation.kill(OPERATOR_NAMES[side])
                federation.start_server(side)

        killer = threading.Thread(target=kill_both)
        killer.start()
        run = run_study(federation, study, lambda progress: None)
        killer.join()
        released = [record for record in run.history.rounds if record.kind is RoundKind.RELEASED]
    assert len(run.history.rounds) == 6
    assert len(released) == 6, [(r.round, r.kind) for r in run.history.rounds]
    plain = run_plain(study, DATA.sites)
    assert [r.handed_out for r in run.history.rounds] == [r.handed_out for r in plain.rounds]
    assert run.final_models_identical


def test_a_process_that_dies_ends_the_run_with_its_log(tmp_path: Path) -> None:
    with RunningFederation(spec_of(DATA, 4), tmp_path) as federation:
        pids = federation.process_ids
        assert len(set(pids.values())) == 7
        federation.running["screening-centre"].process.send_signal(signal.SIGKILL)
        with pytest.raises(Unavailable, match="screening-centre ended with exit code -9"):
            run_study(federation, study_for(federation, 3), lambda progress: None)


def test_a_study_that_stalls_ends_with_the_logs(tmp_path: Path) -> None:
    with RunningFederation(spec_of(DATA, 5), tmp_path) as federation:
        federation.kill(OPERATOR_NAMES[Side.B])
        with pytest.raises(Unavailable, match=r"(?s)no round ended in 3 s\noperator-a:\n.*\ncity-hospital:\n"):
            run_study(federation, study_for(federation, 3), lambda progress: None, stalled_s=3)


def wait_until(happened: Callable[[], bool], within_s: float = 120) -> None:
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
