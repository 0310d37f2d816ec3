"""Every baseline does what its paper says, round by round, with sites away; and what it is refused for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model
from client_agent.learning.sampling import site_seed
from client_agent.learning.study_file import checked_study_table
from client_agent.learning.trainer import epoch_rows
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import SiteData
from harness.datasets.transforms import dealt_anew
from harness.engine.algorithms import BaselineTable
from harness.engine.baseline_rounds import SitesState
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Attendance, Conditions, Reached
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.run_one import Protection
from harness.simulate.store import Checkpoint
from harness.simulate.study_files import simulated_study
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TrainingSpec
from tests.kit.cases import case_text, variant
from tests.unit.harness.baselines import reference

FEDERATION = breast_cancer_five_hospitals(0)


def few(part: Examples) -> Examples:
    return Examples(part.X[:21, :5], part.y[:21])


SITES = tuple(
    replace(site, train=few(site.train), validation=few(site.validation), test=few(site.test))
    for site in FEDERATION.sites
)
SMALL = replace(FEDERATION, inputs=(5,), feature_names=(), sites=SITES)
"""The reference is slow."""
NAMES = FEDERATION.names_of_sites
AWAY = Attendance(joins=((NAMES[2], 2),), missed=frozenset({(2, NAMES[1]), (3, NAMES[4])}))
THERE = {1: (0, 1, 3, 4), 2: (0, 2, 3, 4), 3: (0, 1, 2, 3)}
Reference = Callable[[reference.Federation, int, tuple[int, ...]], None]
STUDY = {
    "name": "baselines",
    "rounds": 3,
    "model": {"kind": "linear", "inputs": [5]},
    "rule": {"name": "fedavg"},
    "training": {
        "update": "local_sgd",
        "batch_size": 8,
        "epochs": 2,
        "local_learning_rate": 0.05,
        "server_learning_rate": 0.04,
    },
    "parameters": {"clip_norm": 1024.0},
}


def run_baseline(study: Study, table: dict, **options: Any) -> RunHistory:
    chosen = TypeAdapter(BaselineTable).validate_python(table)
    under = Conditions(attendance=AWAY, baseline=chosen)
    return run_rounds(study, SMALL.sites, conditions=under, **options)


def batches_of(training: TrainingSpec, site: SiteData) -> Callable[[int], list]:
    return lambda number: epoch_rows(len(site.train), training, number, site_seed(3, site.name))


@pytest.mark.parametrize(
    ("table", "by_hand"),
    [
        ({"name": "fedprox", "mu": 0.7}, lambda f, n, there: reference.fedprox(f, n, there, 0.7)),
        ({"name": "fedprox", "mu": 0.0}, lambda f, n, there: reference.fedprox(f, n, there, 0.0)),
        ({"name": "scaffold"}, reference.scaffold),
        ({"name": "ditto", "pull": 0.5}, lambda f, n, there: reference.ditto(f, n, there, 0.5)),
        (
            {"name": "pfedme", "pull": 4.0, "steps": 3, "personal_rate": 0.03},
            lambda f, n, there: reference.pfedme(f, n, there, 4.0, 3, 0.03),
        ),
        ({"name": "apfl", "mixing": 0.3}, lambda f, n, there: reference.apfl(f, n, there, 0.3, True)),
        ({"name": "apfl", "adaptive": False}, lambda f, n, there: reference.apfl(f, n, there, 0.5, False)),
    ],
    ids=["fedprox", "fedprox is fedavg", "scaffold", "ditto", "pfedme", "apfl", "apfl with a fixed mixture"],
)
def test_every_round_is_the_papers(table: dict, by_hand: Reference) -> None:
    study = simulated_study(checked_study_table(STUDY, "s"), "s", SMALL, 3)
    first, seen = model_vector(build_model(study.model, 3)).astype(np.float64), []

    def after(progress: Reached[SitesState]) -> None:
        seen.append(progress.state)

    history = run_baseline(study, table, after_round=after)
    sites = [
        reference.Site(
            reference.softmax_slope(site.train.X.astype(np.float64), site.train.y, 2),
            batches_of(study.training, site),
        )
        for site in SMALL.sites
    ]
    federation = reference.Federation(first, sites, 0.05, 0.04)
    for number in (1, 2, 3):
        by_hand(federation, number, THERE[number])
        state = seen[number - 1]
        np.testing.assert_allclose(state.shared, federation.x, rtol=1e-4, atol=2e-6)
        if table["name"] in ("ditto", "pfedme", "apfl"):
            own = [site.personal for site in federation.sites]
            np.testing.assert_allclose(state.own, own, rtol=1e-4, atol=2e-6)
        if table["name"] == "apfl":
            np.testing.assert_allclose(state.mixing[0], federation.sites[0].mixing, rtol=1e-4)
        assert history.rounds[number - 1].took_part == tuple(NAMES[place] for place in THERE[number][1:])
    assert np.abs(seen[-1].shared - first).max() > 0.01


def case(variant_of: str, table: str = "", rule: str = "fedavg"):
    training = 'update = "local_sgd"\nbatch_size = 16\nlocal_learning_rate = 0.1\nserver_learning_rate = 0.1'
    variants = variant("fedavg"), variant("baseline", variant_of, rule=rule)
    policy = f"policy = {{ least_isolation = 0.0 }}\n{table}"
    return parse_case(case_text(*variants, case=policy, training=training, clip_norm=64.0), "case.toml")


def test_a_case_runs_one_beside_fedavg(tmp_path: Path) -> None:
    fedavg, prox = run_case(case('baseline = { name = "fedprox", mu = 0.0 }'), CaseOptions(tmp_path))
    assert (prox.rule, fedavg.rule) == ("fedprox", "fedavg")
    np.testing.assert_allclose(prox.final_model or (), fedavg.final_model or (), rtol=1e-4, atol=1e-6)
    assert prox.test_accuracy == fedavg.test_accuracy
    assert prox.took_part == fedavg.took_part
    again = run_case(case('baseline = { name = "fedprox", mu = 0.0 }'), CaseOptions(tmp_path))
    assert again[1] == prox
    with pytest.raises(ConfigurationError, match="'baseline' is not what it was"):
        run_case(case('baseline = { name = "fedprox", mu = 0.1 }'), CaseOptions(tmp_path))


def test_its_numbers_can_be_tuned(tmp_path: Path) -> None:
    tuned = 'baseline = { name = "ditto" }\ntune = { "baseline.pull" = [0.0, 1.0] }'
    lines = run_case(case(tuned, "tuning_seeds = [7]\nvalidation_share = 0.2"), CaseOptions(tmp_path))
    assert lines[1].settings["baseline.pull"] in (0.0, 1.0)
    with pytest.raises(ConfigurationError, match=r"variant 'baseline': baseline.*pull.*-1"):
        run_case(case(tuned.replace("1.0", "-1.0"), "tuning_seeds = [7]"), CaseOptions(tmp_path / "b"))


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ('baseline = { name = "fedsgd" }', "baseline.*'fedprox', 'scaffold', 'ditto'"),
        ('baseline = { name = "fedprox", mu = -1.0 }', "mu.*-1"),
        ('baseline = { name = "scaffold", mu = 1.0 }', "mu"),
        ('baseline = { name = "scaffold" }\nalone_after = 2', "does not go with 'alone_after'"),
        ('baseline = { name = "scaffold" }\ntraining = { momentum = 0.9 }', "without momentum and l2.*0.9"),
        ('baseline = { name = "ditto" }\ntraining = { update = "gradient" }', "takes local SGD"),
        ('baseline = { name = "ditto" }\nmodel = { personal = ["input"] }', "no model with personal layers"),
        ('tune = { "baseline.mu" = [0.1] }', "give a key of model, rule, training, parameters"),
    ],
)
def test_what_the_papers_do_not_define_is_refused(tmp_path: Path, variant: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run_case(case(variant, "tuning_seeds = [7]"), CaseOptions(tmp_path))


@pytest.mark.parametrize("protection", [Protection.SECURE, Protection.CKKS])
def test_servers_do_not_know_it(tmp_path: Path, protection: Protection) -> None:
    with pytest.raises(ConfigurationError, match=r"'scaffold' runs in plain simulation only.*--only"):
        run_case(case('baseline = { name = "scaffold" }'), CaseOptions(tmp_path, protection=protection))


def test_another_rule_has_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="takes FedAvg's place"):
        run_case(case('baseline = { name = "scaffold" }', rule="local"), CaseOptions(tmp_path))


@pytest.mark.parametrize("alpha", [0.2, 100.0])
def test_a_dirichlet_split_deals_every_example_once(alpha: float) -> None:
    dealt = dealt_anew(FEDERATION, alpha, 5)
    before, after = (np.concatenate([site.train.X for site in one.sites]) for one in (FEDERATION, dealt))
    np.testing.assert_array_equal(np.sort(before[:, 0]), np.sort(after[:, 0]))
    assert min(len(site.train) for site in dealt.sites) >= 10
    shares = np.array([site.train.y.mean() for site in dealt.sites])
    assert (np.ptp(shares) > 0.4) == (alpha == 0.2)
    again = dealt_anew(FEDERATION, alpha, 5)
    assert all(np.array_equal(a.train.X, b.train.X) for a, b in zip(dealt.sites, again.sites, strict=True))
    other = dealt_anew(FEDERATION, alpha, 6)
    assert not all(len(a.train) == len(b.train) for a, b in zip(dealt.sites, other.sites, strict=True))
    np.testing.assert_array_equal(dealt.requester.test.X, FEDERATION.requester.test.X)


def test_a_case_deals_by_a_number(tmp_path: Path) -> None:
    even, skewed = (
        run_case(case('baseline = { name = "scaffold" }', table), CaseOptions(tmp_path / name, only=("fedavg",)))[0]
        for name, table in (("a", ""), ("b", "dirichlet = 0.3"))
    )
    assert even.data_digest != skewed.data_digest
    with pytest.raises(ConfigurationError, match=r"dirichlet = 1e-08.*take a larger number"):
        run_case(case("baseline = { name = 'scaffold' }", "dirichlet = 1e-8"), CaseOptions(tmp_path / "c"))


@pytest.mark.parametrize("table", [{"name": "scaffold"}, {"name": "pfedme", "personal_rate": 0.03}, {"name": "apfl"}])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, table: dict) -> None:
    study = simulated_study(checked_study_table(STUDY, "s"), "s", SMALL, 3)

    def checkpoint() -> Checkpoint[SitesState]:
        return Checkpoint(tmp_path, "run", "identity", SitesState)

    def kept(progress: Reached[SitesState]) -> None:
        if len(progress.records) == 2:
            checkpoint().save(progress, 1.0)

    whole = run_baseline(study, table, after_round=kept)
    resumed, _ = checkpoint().load()
    assert resumed is not None
    again = run_baseline(study, table, resume=resumed)
    np.testing.assert_array_equal(again.final_model, whole.final_model)
    assert again.rounds == whole.rounds


@pytest.mark.parametrize(("mixing", "is_shared"), [(0.0, True), (0.5, False)])
def test_apfl_is_judged_by_the_mixture(mixing: float, is_shared: bool) -> None:
    study = simulated_study(checked_study_table(STUDY, "s"), "s", SMALL, 3)
    seen: list[Reached[SitesState]] = []
    table = {"name": "apfl", "mixing": mixing, "adaptive": False}
    history = run_baseline(study, table, after_round=seen.append)
    state = seen[-1].state
    np.testing.assert_allclose(
        history.final_model, mixing * state.own[0] + (1 - mixing) * state.shared, rtol=0, atol=1e-6
    )
    assert np.array_equal(history.final_model, state.shared) is is_shared
