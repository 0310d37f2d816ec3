"""Rules over two servers and five agents, all at once and in memory: the same decisions as the plain run, models
within the derived bound; and what stops a study before its first round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import LocalData
from client_agent.learning.models import dimension, model_spec
from client_agent.site.events import EventKind, RoundEnd, RoundRecord, rewards_of
from harness.engine.history import RoundKind, RunHistory
from harness.federation.in_memory_federation import InMemoryFederation
from protocol.messages.control import ModelSpec, Purpose, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rules.fedavg import class_weight
from tests.integration.agents import (
    FEDAVG,
    MODEL,
    REQUESTER,
    changed,
    final_model,
    finished,
    in_one_process,
    journal,
    rounds_of,
    run_to_end,
    site_data,
    study_for,
    trained,
)
from tests.kit.bounds.error_bound import bound_of_run
from tests.kit.present import present
from tests.unlimited import run_plain

pytestmark = pytest.mark.uncounted
CONTRIBUTORS = ("c1", "c2", "c3", "c4")
SITES = (REQUESTER, *CONTRIBUTORS)
SAMPLES = (60, 48, 30, 42, 54)
"""Sites of different sizes, so that weights by samples and by class differ."""
ROUNDS = 2
NORM_BOUND = 1.17
"""Between the norms of the sites' first gradients (1.232, .957, 1.098 and 1.104): it leaves out one site a round."""
WILLING = SitePolicy(least_isolation=0.0, may_open=tuple(needs for needs in Needs if needs is not Needs.NOTHING))
RULES = {
    "weight-erosion": RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.05, size_penalty=0.1),
    "fedavg": FEDAVG,
    "fedavg-bounded": RuleSpec(name=RuleName.FEDAVG, norm_bound=NORM_BOUND),
    "by-samples": RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES),
    "by-samples-bounded": RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES, norm_bound=5.0),
    "wfedavg": RuleSpec(name=RuleName.WFEDAVG),
    "fedadam": RuleSpec(name=RuleName.FEDADAM, adaptivity=0.1),
    "multi-krum": RuleSpec(name=RuleName.MULTI_KRUM),
    "influence": RuleSpec(name=RuleName.INFLUENCE),
}


EMPTY_CLASS, THREE_CLASSES = "empty-class", model_spec("linear", (5,), (), 3)


def data_of(place: int) -> LocalData:
    whole = site_data(place)
    X, y = whole.train.X[: SAMPLES[place]], whole.train.y[: SAMPLES[place]]
    return LocalData(replace(whole.train, X=X, y=y), whole.test, site_data(100 + place).test)


DATA = {name: data_of(place) for place, name in enumerate(SITES)}


def study_of(federation: InMemoryFederation, name: str, rule: RuleSpec, model: ModelSpec = MODEL) -> Study:
    """With a grid of 1/2 a site of weight 1 has at most half of a sum of three whose weights it does not know."""
    own = rule.name.self_weighted
    training = TrainingSpec(batch_size=16, server_learning_rate=0.1)
    numbers = {"dimension": dimension(model) + own, "weight_grid": 2 if own else 32}
    plain = study_for(federation, name, rounds=ROUNDS)
    return changed(plain, rule=rule, model=model, training=training, **numbers)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with trained(tmp_path_factory.mktemp("federation"), DATA, WILLING) as running:
        yield running


@pytest.fixture(scope="module")
def run(federation: InMemoryFederation) -> InMemoryFederation:
    """All rules' studies at the same time, to their ends."""
    with federation.agents():
        for name, rule in RULES.items():
            federation.hand_in(study_of(federation, name, rule))
        federation.hand_in(study_of(federation, EMPTY_CLASS, RULES["wfedavg"], THREE_CLASSES))
        for name in (*RULES, EMPTY_CLASS):
            federation.until(f"the end of {name}", finished(federation, name, *SITES))
    return federation


def updates(records: tuple[RoundRecord, ...]) -> list[RoundRecord]:
    return [record for record in records if record.purpose is Purpose.UPDATE]


def plain_updates(history: RunHistory) -> list:
    return [record for record in history.rounds if record.kind is not RoundKind.COUNTED]


@pytest.mark.parametrize("name", list(RULES))
def test_a_rule_decides_as_in_the_plain_run_and_models_agree(run: InMemoryFederation, name: str, capsys) -> None:
    study = study_of(run, name, RULES[name])
    plain = run_plain(study, in_one_process(DATA), policy=WILLING)
    records = updates(rounds_of(run, REQUESTER, name))
    assert [r.state for r in records] == [RoundEnd.RELEASED] * ROUNDS
    expected = plain_updates(plain)
    assert [r.weights for r in records] == [r.handed_out for r in expected]
    assert [r.took_part[1:] for r in records] == [r.took_part for r in expected]
    assert [r.failed_check for r in records] == [r.failed_check for r in expected]
    models = {final_model(run, site, name) for site in SITES}
    assert len(models) == 1
    difference = np.frombuffer(models.pop(), dtype=np.float32).astype(np.float64) - plain.final_model
    bound = bound_of_run(plain, study, in_one_process(DATA))
    with capsys.disabled():
        print(f"\n{name}: models differ by {np.linalg.norm(difference):.2e}, bound {bound:.2e}")
    assert 0 < np.linalg.norm(difference) <= bound


def test_what_a_rule_opens_is_in_the_requesters_records_alone(run: InMemoryFederation) -> None:
    opened = {
        name: {field for field in ("distances", "norms", "pairs", "inner_products") if getattr(record, field)}
        for name in RULES
        for record in updates(rounds_of(run, REQUESTER, name))
    }
    assert opened == {
        "weight-erosion": {"distances"},
        "fedavg": set(),
        "fedavg-bounded": {"norms"},
        "by-samples": set(),
        "by-samples-bounded": {"norms"},
        "wfedavg": set(),
        "fedadam": set(),
        "multi-krum": {"pairs"},
        "influence": {"inner_products"},
    }
    for name in RULES:
        for record in rounds_of(run, "c1", name):
            assert (record.distances, record.norms, record.pairs, record.inner_products, record.alphas) == ((),) * 5


def test_the_norm_bound_and_multi_krum_leave_sites_out(run: InMemoryFederation) -> None:
    bounded = updates(rounds_of(run, REQUESTER, "fedavg-bounded"))
    left_out = [set(r.failed_check) for r in bounded]
    norms = [{v.site for v in r.norms if v.value > NORM_BOUND} for r in bounded]
    assert left_out == norms
    assert any(left_out)
    for record in updates(rounds_of(run, REQUESTER, "by-samples-bounded")):
        weights = {site: min(max(len(DATA[site].train.y) / max(SAMPLES), 0.5), 1.0) for site in CONTRIBUTORS}
        # (w g, w C) with C = 4; fixed point moves each of its coordinates by less than 2^-19
        assert all(4 * weights[v.site] - 1e-4 <= v.value <= 4 * weights[v.site] * 2**0.5 + 1e-4 for v in record.norms)
        assert record.failed_check == ()
    for record in updates(rounds_of(run, REQUESTER, "multi-krum")):
        assert record.failed_check == ()
        assert len(record.pairs) == 10  # five sites
        assert len(record.took_part) in (4, 5)  # four selected, and the requester where it is not among them


def test_class_counts_are_summed_first_and_every_site_weighs_itself(run: InMemoryFederation) -> None:
    counts = {name: np.bincount(data.train.y, minlength=2) for name, data in DATA.items()}
    for site in SITES:
        first, *others = rounds_of(run, site, "wfedavg")
        assert (first.purpose, first.state, first.model_version) == (Purpose.COUNTS, RoundEnd.RELEASED, 0)
        assert [r.purpose for r in others] == [Purpose.UPDATE] * ROUNDS
        state = present(journal(run, site, "wfedavg").site_state())
        assert present(state.counted).totals == tuple(np.sum(list(counts.values()), axis=0))
        assert first.own_weight is None
    by_class = [updates(rounds_of(run, site, "wfedavg"))[0].own_weight for site in SITES]
    by_samples = [updates(rounds_of(run, site, "by-samples"))[0].own_weight for site in SITES]
    assert by_samples == [max(0.5, samples / max(SAMPLES)) for samples in SAMPLES]
    assert all(weight is not None and 0.5 <= weight <= 1 for weight in by_class)
    assert len(set(by_class)) > 1


def test_a_class_that_no_site_has_ends_the_study_before_the_first_update(run: InMemoryFederation) -> None:
    """The model has three classes, the sites' labels two: only the sites know which is missing."""
    states = {site: journal(run, site, EMPTY_CLASS).site_state() for site in SITES}
    for site, state in states.items():
        assert state is not None
        assert (state.finished or "").startswith("failed: no site has a training example of some class")
        assert ("classes [2]" in (state.finished or "")) is (site == REQUESTER)
        assert state.model_version == 0
        assert [r.purpose for r in rounds_of(run, site, EMPTY_CLASS)] == [Purpose.COUNTS]


def test_the_exported_model_is_the_model_alone(run: InMemoryFederation) -> None:
    state = present(journal(run, "c1", "fedadam").site_state())
    assert state.model_version == ROUNDS
    own = journal(run, "c1", "fedadam")
    assert own.load_model(ROUNDS).shape == (12,)
    kept = own.load_kept(ROUNDS)
    assert kept.shape == (36,)
    assert (kept[24:] >= 0).all()
    assert np.any(kept[12:24] != 0)


def test_a_site_reads_what_it_gave(run: InMemoryFederation) -> None:
    rewards = {entry.site: entry for entry in rewards_of(rounds_of(run, "c1", "weight-erosion"), "c1", REQUESTER)}
    assert rewards[REQUESTER].rounds == ROUNDS
    assert rewards[REQUESTER].weights == ROUNDS
    lists = updates(rounds_of(run, "c1", "weight-erosion"))
    expected = sum(w.numerator / 32 for r in lists for w in r.weights if w.site == "c2")
    assert rewards["c2"].weights == expected
    own = {e.site: e.weights for e in rewards_of(rounds_of(run, "c1", "by-samples"), "c1", REQUESTER)}
    assert own == {"c1": ROUNDS * 48 / 60, **dict.fromkeys((REQUESTER, "c2", "c3", "c4"), None)}


def test_a_site_that_comes_after_the_class_counts_weighs_itself_by_them(tmp_path: Path) -> None:
    """It learns the sum, in which it is not, with its first weight list.

    In a federation of its own: where all sites' classes were counted before, they are not counted without one.
    """
    with trained(tmp_path, DATA, WILLING) as run:
        _late_after_counts(run)


def _late_after_counts(run: InMemoryFederation) -> None:
    config, late = run.config(REQUESTER), "c4"
    config.write_text("start_when = 3\n" + config.read_text())
    study = changed(study_of(run, "late", RULES["wfedavg"]), rounds=10)
    early = tuple(site for site in SITES if site != late)
    with run.agents(*early):
        run.hand_in(study)
        run.until("the first update", lambda: len(rounds_of(run, REQUESTER, "late")) >= 2)
        run.start(late)
        run.until("the end", finished(run, "late", *SITES))
    totals = tuple(np.sum([np.bincount(DATA[site].train.y, minlength=2) for site in early], axis=0).tolist())
    states = {site: journal(run, site, "late").site_state() for site in SITES}
    assert {state.counted.totals for state in states.values() if state and state.counted} == {totals}
    own = tuple(int(n) for n in np.bincount(DATA[late].train.y, minlength=2))
    came = rounds_of(run, late, "late")
    assert {record.own_weight for record in came} == {class_weight(own, totals, 2)}
    assert [record.purpose for record in came] == [Purpose.UPDATE] * len(came)
    last = rounds_of(run, REQUESTER, "late")[-1]
    assert (last.round, last.took_part) == (11, SITES)
    assert len({final_model(run, site, "late") for site in SITES}) == 1


def test_a_site_that_forbids_what_the_rule_opens_ends_the_study_before_it_begins(tmp_path: Path) -> None:
    policy = SitePolicy(least_isolation=0.0, may_open=(Needs.DISTANCES,))
    with trained(tmp_path, DATA, c2=policy) as running, running.agents():
        run_to_end(running, study_of(running, "krum", RULES["multi-krum"]))
    states = {site: journal(running, site, "krum").site_state() for site in SITES}
    said = {site: state.finished for site, state in states.items() if state is not None}
    assert "site 'c2' does not let the study's rule open pairs about it" in (said["c1"] or "")
    assert "failed: site 'c2' refuses the study: may_open: the study's rule opens pairs" in (said[REQUESTER] or "")
    assert (said["c2"] or "").startswith("refused: may_open")
    assert all(rounds_of(running, site, "krum") == () for site in SITES)
    assert not running.texts(EventKind.DECLINED, "c2")
