"""The losses, models and output of a ranking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.cli.study_work import show_rankings
from client_agent.learning.data import Examples
from client_agent.learning.ridge import JudgedOn, JudgingForm, design, judging_form, ridge_model, targets
from client_agent.requester.admission import public_text
from client_agent.requester.measurement import make_judging
from client_agent.study.results import RANKING_FILE, RankedSite, Ranking, UnrankedSite, losses_of, ranking_spec
from protocol.errors import ConfigurationError, ProtocolViolation, UnusableUpdate
from protocol.messages.control import RuleName, StudyEndState
from protocol.mpc.measurement import OpenedSite
from protocol.ranking import predictor
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.benches import FakeLearner, RequesterBench, requester_bench
from tests.unit.client_agent.federation import REQUESTER
from tests.unit.client_agent.test_decisions import MODEL, study_with
from tests.unit.client_agent.test_ranking import CLASSES, EQUAL_COLUMNS, JUDGED, MODELS, STUDY, WILLING, ranking_study

# --- ranking data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequesterBench]:
    monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: MODELS, raising=False)
    monkeypatch.setattr(FakeLearner, "judging_form", lambda _: judging_form(JUDGED, None, CLASSES), raising=False)
    with requester_bench(tmp_path, STUDY, MODEL, WILLING) as made:
        yield made


def _nothing(_: object) -> JudgingForm:
    raise UnusableUpdate("the requester's examples hold NaN")


@pytest.mark.parametrize(
    ("what", "gives", "said"),
    [
        ("judging_form", _nothing, "hold NaN"),
        ("ridge", lambda _, penalty: ridge_model(EQUAL_COLUMNS, CLASSES, penalty), "rounding hides the penalty"),
    ],
)
def test_the_requester_begins_no_study_without_examples_to_judge_by_or_a_model(
    bench: RequesterBench, monkeypatch: pytest.MonkeyPatch, what: str, gives: Any, said: str
) -> None:
    monkeypatch.setattr(FakeLearner, what, gives)
    monkeypatch.setattr(bench.requester, "prepare", lambda: None)
    bench.requester.save(model_version=None)
    with pytest.raises(UnusableUpdate, match=said):
        bench.requester.run()
    assert bench.servers[Side.A].sent == {}


def test_data_that_became_unusable_after_the_start_end_the_study(
    bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart in a begun study: it ends as failed at both servers, it does not wait for ever."""
    requester = bench.requester
    monkeypatch.setattr(FakeLearner, "judging_form", _nothing)
    for name in ("prepare", "_create", "_deliver_end"):
        monkeypatch.setattr(requester, name, lambda: None)
    for name in ("start", "close"):
        monkeypatch.setattr(requester.watch, name, lambda: None)
    monkeypatch.setattr(requester, "_shared_part", lambda: make_judging(requester, 1))
    requester.run()
    end = present(requester.progress.end)
    assert (end.message.state, end.message.reason) == (
        StudyEndState.FAILED,
        "the requester's update cannot be shared",
    )


def test_losses_are_put_in_order_and_failed_sites_named() -> None:
    opened = [OpenedSite("c1", True, inner_product=4.0), OpenedSite("c2", False), OpenedSite("c3", True, None, 2.0)]
    losses, failed = losses_of(opened, 1.0, 2.0)
    assert [(one.site, one.loss) for one in losses] == [("c3", 2.0), ("c1", 3.0)]
    assert failed == ("c2",)


def test_a_study_that_ranks_nobody_has_no_penalty() -> None:
    with pytest.raises(ProtocolViolation, match="ranks no sites"):
        ranking_spec(study_with(RuleName.FEDAVG))


@pytest.mark.parametrize(
    ("rule", "opened"),
    [
        (RuleName.FEDAVG, "ranking open inner_products"),
        (RuleName.WEIGHT_EROSION, "rule open distances or its ranking open inner_products"),
    ],
)
def test_a_study_that_a_site_refuses_names_the_ranking_in_public(rule: RuleName, opened: str) -> None:
    said = public_text(ranking_study(rule), "c2")
    assert said == f"site 'c2' does not let the study's {opened} about it; no round was begun"


# --- ridge ------------------------------------------------------------------------------------------------------------


def examples(seed: int, count: int = 30) -> Examples:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2, 2)).astype(np.float32)
    return Examples(X, (X[:, 0, 0] > 0).astype(np.int64))


def test_features_are_flattened_with_a_constant_behind_them() -> None:
    rows = design(examples(1))
    assert rows.shape == (30, 5)
    assert (rows[:, -1] == 1).all()
    np.testing.assert_array_equal(targets(examples(1), 3).sum(axis=1), 1)


def test_no_model_nearby_has_a_smaller_penalised_loss() -> None:
    of, penalty = examples(2), 0.05
    X, Y = design(of), targets(of, 2)

    def cost(W: np.ndarray) -> float:
        return float(np.sum((X @ W - Y) ** 2) / len(X) + penalty * np.sum(W**2))

    best = ridge_model(of, 2, penalty)
    rng = np.random.default_rng(3)
    assert all(cost(best + 1e-3 * rng.normal(size=best.shape)) > cost(best) for _ in range(20))


@pytest.mark.parametrize(
    ("X", "text"),
    [
        (np.full((4, 2), 1e9), "rounding hides the penalty"),
        (np.full((4, 2), 1e200), "numbers that overflow"),
        (np.array([[np.nan, 0.0], [1.0, 2.0]]), "hold NaN"),
    ],
)
def test_where_there_is_no_model_it_is_said_what_to_do(X: np.ndarray, text: str) -> None:
    """Two columns of 1e9: X'X / n is 1e18, whose rounding unit of 128 hides every penalty up to 1."""
    of = Examples(X, np.arange(len(X)) % 2)
    for penalty in (1e-4, 1.0):
        with pytest.raises(UnusableUpdate, match=text) as raised:
            ridge_model(of, 2, penalty)
        assert "bring the features to a common scale" in raised.value.detail


@pytest.mark.parametrize(
    ("validation", "expected"),
    [(examples(5), JudgedOn.VALIDATION), (None, JudgedOn.TRAINING), (examples(5, 0), JudgedOn.TRAINING)],
)
def test_validation_examples_judge_where_there_are_some(validation: Examples | None, expected: JudgedOn) -> None:
    train = examples(4)
    judging = judging_form(train, validation, 2)
    assert judging.judged_on is expected
    judged = train if expected is JudgedOn.TRAINING or validation is None else validation
    W = ridge_model(train, 2, 0.01)
    plain = float(np.mean(np.sum((design(judged) @ W - targets(judged, 2)) ** 2, axis=1)))
    assert judging.form.loss(predictor(W)) == pytest.approx(plain, rel=1e-12)


# --- ranking cli ------------------------------------------------------------------------------------------------------

RANKING = Ranking(
    study="hearts",
    requester=REQUESTER,
    round=1,
    judged_on=JudgedOn.VALIDATION,
    own_loss=0.125,
    error_bound=1e-4,
    sites=(RankedSite(site="c2", loss=0.25), RankedSite(site="c1", loss=None)),
    unranked=(UnrankedSite(site="c3", reason="it contributed nothing"),),
)


def written(folder: Path, ranking: Ranking) -> None:
    place = folder / "studies" / ranking.study
    place.mkdir(parents=True)
    (place / RANKING_FILE).write_text(ranking.model_dump_json())


def test_the_table_names_every_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, RANKING)
    written(tmp_path, Ranking(study="lungs", requester=REQUESTER, round=3, problem="one server lost its half"))
    show_rankings(tmp_path, None, json_output=False)
    shown = capsys.readouterr().out
    for text in (
        "0.2500",
        "failed its range check",
        "not ranked: it",
        "r0 itself",
        "0.1250",
        "exact to 0.0001",
        "lungs: the sites were",
    ):
        assert text in shown
    assert "trained on" not in shown
    show_rankings(tmp_path, "hearts", json_output=True)
    assert Ranking.model_validate(json.loads(capsys.readouterr().out)) == RANKING


def test_an_own_loss_on_training_examples_is_said_to_be_no_yardstick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, RANKING.model_copy(update={"judged_on": JudgedOn.TRAINING}))
    show_rankings(tmp_path, None, json_output=False)
    shown = capsys.readouterr().out
    assert "r0's training examples" in shown
    assert "r0 itself, trained on" in shown


def test_no_ranking_and_a_broken_one_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no ranking of study 'hearts'"):
        show_rankings(tmp_path, "hearts", json_output=False)
    written(tmp_path, RANKING)
    (tmp_path / "studies" / "hearts" / RANKING_FILE).write_text("{}")
    with pytest.raises(ConfigurationError, match="3 fields are wrong"):
        show_rankings(tmp_path, None, json_output=False)
