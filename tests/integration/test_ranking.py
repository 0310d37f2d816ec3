"""Sites ranked before training by real agents over two servers in memory, and training after (docs/protocol.md 8)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from client_agent.cli.study import app as study_app
from client_agent.learning.ridge import JudgedOn, judging_form, ridge_model
from client_agent.site.events import RoundEnd
from client_agent.study.results import RANKING_FILE, Ranking
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from protocol.messages.control import Purpose, RankingSpec, RuleName, RuleSpec, Study
from protocol.policy.site_policy import SitePolicy
from protocol.ranking import predictor
from tests.integration.agents import (
    EROSION,
    REQUESTER,
    changed,
    final_model,
    journal,
    out_of_range,
    rounds_of,
    run_to_end,
    site_data,
    spec,
    study_for,
)
from tests.kit.present import present

CONTRIBUTORS = ("c1", "c2", "c3")
SITES = (REQUESTER, *CONTRIBUTORS)
CLASSES, ROUNDS, PENALTY = 2, 2, 0.02


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    policies = {name: SitePolicy(least_isolation=0.0, may_rank=True) for name in SITES}
    with InMemoryFederation(spec(policies), tmp_path_factory.mktemp("ranking"), torch_learner) as running:
        yield running


def ranking_study(run: InMemoryFederation, name: str) -> Study:
    return changed(study_for(run, name, EROSION, ROUNDS, 20.0), ranking=RankingSpec(penalty=PENALTY))


def counting_study(run: InMemoryFederation, name: str) -> Study:
    """WFedAvg, under which every site of three may weigh as much as the others' least weights let it."""
    return changed(ranking_study(run, name), rule=RuleSpec(name=RuleName.WFEDAVG), dimension=13, weight_grid=2)


def kept(run: InMemoryFederation, name: str) -> Ranking:
    return present(journal(run, REQUESTER, name).read(journal(run, REQUESTER, name).folder / RANKING_FILE, Ranking))


@pytest.fixture(scope="module")
def ranked(run: InMemoryFederation) -> Ranking:
    """A study of Weight Erosion that ranks its sites first, run to its end."""
    with run.agents():
        run_to_end(run, ranking_study(run, "erosion"))
    return kept(run, "erosion")


def plain_losses() -> dict[str, float]:
    """The loss of every site's model on the requester's training examples; it has no others to judge by."""
    data = {name: site_data(number) for number, name in enumerate(SITES)}
    form = judging_form(data[REQUESTER].train, None, CLASSES).form
    return {name: form.loss(predictor(ridge_model(of.train, CLASSES, PENALTY))) for name, of in data.items()}


def test_what_is_opened_is_the_plain_ranking_within_the_derived_bound(ranked: Ranking) -> None:
    plain = plain_losses()
    assert ranked.problem == ""
    assert ranked.judged_on is JudgedOn.TRAINING
    assert ranked.own_loss == plain[REQUESTER]
    assert ranked.error_bound is not None
    losses = {one.site: one.loss for one in ranked.sites}
    assert set(losses) == set(CONTRIBUTORS)
    assert all(loss is not None and abs(loss - plain[site]) <= ranked.error_bound for site, loss in losses.items())
    assert min(abs(a - b) for a in plain.values() for b in plain.values() if a != b) > 2 * ranked.error_bound
    assert [one.site for one in ranked.sites] == sorted(CONTRIBUTORS, key=lambda site: plain[site])


def test_training_goes_on_after_it_and_nobody_but_the_requester_holds_a_loss(
    run: InMemoryFederation, ranked: Ranking
) -> None:
    for site in SITES:
        rounds = [(r.round, r.purpose, r.state) for r in rounds_of(run, site, "erosion")]
        updates = [(number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)]
        assert rounds == [(1, Purpose.RANKING, RoundEnd.RANKED), *updates]
    assert len({final_model(run, site, "erosion") for site in SITES}) == 1
    assert not any((journal(run, site, "erosion").folder / RANKING_FILE).exists() for site in CONTRIBUTORS)


def test_a_site_out_of_range_is_named_and_class_counts_are_summed_after_it(
    run: InMemoryFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c3's model is out of range; its update afterwards is in range."""
    out_of_range(monkeypatch, "c3", lambda announcement: announcement.purpose is Purpose.RANKING)
    with run.agents():
        run_to_end(run, counting_study(run, "counted"))
    assert {one.site: one.loss is None for one in kept(run, "counted").sites} == {"c1": False, "c2": False, "c3": True}
    assert kept(run, "counted").sites[-1].site == "c3"
    rounds = rounds_of(run, "c3", "counted")
    assert [r.purpose for r in rounds] == [Purpose.RANKING, Purpose.COUNTS, *[Purpose.UPDATE] * ROUNDS]
    assert rounds[-1].took_part == SITES


def test_the_command_shows_what_the_requester_keeps(run: InMemoryFederation, ranked: Ranking) -> None:
    config = ["--config", str(run.config(REQUESTER))]
    shown = CliRunner().invoke(study_app, ["ranking", "erosion", *config, "--json"])
    assert Ranking.model_validate(json.loads(shown.output)) == ranked
    table = CliRunner().invoke(study_app, ["ranking", *config]).output
    assert all(f"{one.loss:.4f}" in table for one in ranked.sites)
    other = CliRunner().invoke(study_app, ["ranking", "--config", str(run.config("c1"))])
    assert "no ranking of any study" in str(other.exception)
