"""Rules that weigh sites by risk over two servers and six agents in memory, with the sites' default policies.

Rounds of their own measure pairs and sum nothing; sums open norms. What is decided is what the plain run decides, and
the models agree within the derived bound (docs/protocol.md 8, 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import LocalData
from client_agent.learning.study_file import FinishTable
from client_agent.site.events import EventKind, RoundEnd, RoundRecord, rewards_of
from harness.engine.history import RoundKind, RunEnd, RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.engine.updates import PlainSum
from harness.federation.in_memory_federation import InMemoryFederation
from protocol.messages.control import Purpose, RuleName, RuleSpec, Study, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import (
    REQUESTER,
    changed,
    final_model,
    finished,
    in_one_process,
    journal,
    out_of_range,
    rounds_of,
    run_to_end,
    site_data,
    study_for,
    trained,
)
from tests.kit.bounds.error_bound import bound_of_run
from tests.kit.present import present
from tests.kit.small_runs import run_plain

pytestmark = pytest.mark.uncounted

CONTRIBUTORS = ("c1", "c2", "c3", "c4", "c5")
SITES = (REQUESTER, *CONTRIBUTORS)
OPPOSED = "c5"
"""Its labels are turned round and its steps long: its weight is 0, and it is measured again all the same."""
MALLOWS = RuleSpec(name=RuleName.MALLOWS, measure_every=3)
ROUNDS = 4
KINDS = {
    RoundEnd.CLOSED: RoundKind.MEASURED,
    RoundEnd.RELEASED: RoundKind.RELEASED,
    RoundEnd.SKIPPED: RoundKind.SKIPPED,
}


def data_of(place: int) -> LocalData:
    made = site_data(place)
    if SITES[place] != OPPOSED:
        return made
    return LocalData(replace(made.train, X=made.train.X * 8, y=1 - made.train.y), made.test)


DATA = {name: data_of(place) for place, name in enumerate(SITES)}


def study_of(federation: InMemoryFederation, name: str, rule: RuleSpec, rounds: int = ROUNDS) -> Study:
    training = TrainingSpec(batch_size=8, server_learning_rate=0.2)
    return changed(study_for(federation, name, rule, rounds), training=training, weight_grid=256)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with trained(tmp_path_factory.mktemp("measured"), DATA, SitePolicy()) as running:
        with running.agents():
            run_to_end(running, study_of(running, "mallows", MALLOWS))
        yield running


def as_plain(records: tuple[RoundRecord, ...], plain: RunHistory) -> None:
    """The same rounds with the same lists, measured the same."""
    assert [KINDS[r.state] for r in records] == [r.kind for r in plain.rounds]
    assert [r.weights for r in records] == [r.handed_out for r in plain.rounds]
    assert [r.took_part[1:] for r in records] == [r.took_part for r in plain.rounds]
    assert [r.failed_check for r in records] == [r.failed_check for r in plain.rounds]
    assert [r.declined for r in records] == [r.declined for r in plain.rounds]
    for record, twin in zip(records, plain.rounds, strict=True):
        assert [(p.first, p.second) for p in record.pairs] == [(p.first, p.second) for p in twin.pairs]
        ours, theirs = (np.array([p.value for p in record.pairs]), np.array([p.value for p in twin.pairs]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
        norms = np.array([v.value for v in record.norms])
        np.testing.assert_allclose(norms, np.array([v.value for v in twin.norms]), rtol=1e-3, atol=1e-4)


def models_agree(run: InMemoryFederation, study: Study, plain: RunHistory) -> None:
    ours = np.frombuffer(final_model(run, REQUESTER, study.name), dtype=np.float32).astype(np.float64)
    difference = float(np.linalg.norm(ours - plain.final_model))
    assert 0 < difference <= bound_of_run(plain, study, in_one_process(DATA))


def test_six_sites_under_mallows_complete_with_default_policies_and_nobody_declines(run: InMemoryFederation) -> None:
    study = study_of(run, "mallows", MALLOWS)
    plain = run_plain(study, in_one_process(DATA))
    records = rounds_of(run, REQUESTER, "mallows")
    assert plain.end is RunEnd.COMPLETED
    as_plain(records, plain)
    models_agree(run, study, plain)
    state = present(journal(run, REQUESTER, "mallows").site_state())
    assert state.finished == "completed: all rounds are done"
    assert [record.purpose for record in records] == [Purpose.MEASURE, Purpose.UPDATE, Purpose.UPDATE] * 2
    assert [record.declined for record in records] == [()] * len(records)
    assert not any(run.texts(EventKind.DECLINED, site) for site in SITES)


def test_measured_rounds_open_pairs_of_everybody_and_sums_open_norms_of_the_listed(run: InMemoryFederation) -> None:
    for record in rounds_of(run, REQUESTER, "mallows"):
        if record.purpose is Purpose.MEASURE:
            assert (len(record.pairs), record.norms, record.requester_numerator) == (15, (), None)
            assert [w.numerator for w in record.weights] == [record.grid] * 5
            assert record.took_part == SITES
        else:
            assert (record.pairs, len(record.norms)) == ((), len(record.weights))
            assert 0 < present(record.requester_numerator) <= record.grid


def test_a_site_of_weight_0_is_sent_the_model_and_measured_again(run: InMemoryFederation) -> None:
    records = rounds_of(run, REQUESTER, "mallows")
    lists = [{w.site for w in record.weights} for record in records]
    assert [OPPOSED in of for of in lists[:4]] == [True, False, False, True]
    own = {record.round: record for record in rounds_of(run, OPPOSED, "mallows")}
    assert (own[4].state, own[4].model_version) == (RoundEnd.CLOSED, 2)
    assert f"sent model 2 to {OPPOSED}, to be measured again" in " ".join(run.texts(EventKind.STUDY, REQUESTER))
    models = {final_model(run, site, "mallows") for site in SITES if site in {*lists[-1], REQUESTER}}
    assert len(models) == 1


def test_what_is_opened_and_the_requesters_noise_stay_with_the_requester(run: InMemoryFederation) -> None:
    for site in CONTRIBUTORS:
        for record in rounds_of(run, site, "mallows"):
            assert (record.pairs, record.norms, record.alphas) == ((), (), ())
        assert not list(journal(run, site, "mallows").folder.rglob("own_noise.json"))


def test_every_listed_site_knows_the_requesters_weight_and_reckons_with_it(run: InMemoryFederation) -> None:
    records = rounds_of(run, REQUESTER, "mallows")
    lists = [(r.requester_numerator, r.weights) for r in records if r.purpose is Purpose.UPDATE]
    seen = [(r.requester_numerator, r.weights) for r in rounds_of(run, "c1", "mallows") if r.purpose is Purpose.UPDATE]
    assert seen == lists
    own = next(reward for reward in rewards_of(records, REQUESTER, REQUESTER) if reward.site == REQUESTER)
    assert (own.rounds, own.weights) == (ROUNDS, sum((numerator or 0) / 256 for numerator, _ in lists))


def test_shrinkage_opens_nothing_and_is_the_plain_run(tmp_path: Path) -> None:
    policy = SitePolicy(may_open=())
    with trained(tmp_path, DATA, policy) as running:
        study = study_of(running, "shrinkage", RuleSpec(name=RuleName.SHRINKAGE))
        with running.agents():
            records = run_to_end(running, study)
        plain = run_plain(study, in_one_process(DATA), policy=policy)
        as_plain(records, plain)
        models_agree(running, study, plain)
        assert [r.state for r in records] == [RoundEnd.RELEASED] * ROUNDS
        assert all((r.pairs, r.norms, r.distances, r.declined) == ((), (), (), ()) for r in records)
        assert records[-1].weights[0].numerator < 256


def test_with_a_local_finish_the_noise_is_that_of_the_examples_seen(tmp_path: Path) -> None:
    """Two fifths of the requester's examples are held out of all rounds: its updates are noisier than declared."""
    finish = FinishTable(held_out=0.4)
    with trained(tmp_path, DATA, SitePolicy()) as running:
        study = study_of(running, "finished", MALLOWS, rounds=2)
        with running.agents():
            *records, last = run_to_end(running, study, finish=finish)
        plain = run_rounds(study, in_one_process(DATA), PlainSum(), Conditions(finish=finish), protection="plain")
    assert last.state is RoundEnd.FINISHED
    as_plain(tuple(records), replace(plain, rounds=plain.rounds[:-1]))


def test_a_late_joiner_waits_for_the_next_measurement(tmp_path: Path) -> None:
    with trained(tmp_path, DATA, SitePolicy()) as running:
        study = study_of(running, "late", MALLOWS)
        config = running.config(REQUESTER)
        config.write_text("start_when = 4\n" + config.read_text())
        with running.agents(*(site for site in SITES if site != "c2")):
            running.hand_in(study)
            running.until("a sum", lambda: len(rounds_of(running, REQUESTER, "late")) >= 2)
            running.start("c2")
            running.until("the end", finished(running, "late", *SITES))
        records = rounds_of(running, REQUESTER, "late")
    listed = ["c2" in {w.site for w in record.weights} for record in records]
    assert [record.purpose for record in records] == [Purpose.MEASURE, Purpose.UPDATE, Purpose.UPDATE] * 2
    assert listed[:4] == [False, False, False, True]
    assert [record.declined for record in records] == [()] * len(records)
    assert any(listed[4:]) == any(value.site == "c2" and value.value > 0 for value in records[-1].alphas)


def test_a_site_out_of_range_is_not_measured_and_stays_unlisted_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c2 is out of range in the first measurement, and behaves in the second."""
    out_of_range(monkeypatch, "c2", lambda announcement: announcement.round == 1)
    with trained(tmp_path, DATA, SitePolicy()) as running:
        study = study_of(running, "wild", MALLOWS)
        with running.agents():
            first, *others = run_to_end(running, study)
    assert (first.state, first.failed_check) == (RoundEnd.CLOSED, ("c2",))
    assert "c2" not in first.took_part
    assert not any("c2" in (pair.first, pair.second) for pair in first.pairs)
    listed = ["c2" in {w.site for w in record.weights} for record in others]
    assert listed[:3] == [False, False, True]
    assert (others[2].purpose, others[2].failed_check) == (Purpose.MEASURE, ())
    assert "c2" in others[2].took_part
