"""Metrics on a test part, metrics of every round, and curves as SVG."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn import metrics
from sklearn.linear_model import LogisticRegression
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.metrics import integrated_brier_score

from client_agent.learning.metrics import NotComputable, Predicted, area_under_roc, final_scores, mean_log_loss, scores
from client_agent.learning.scores import METRICS, MetricName, Score, shown_score, value_of
from client_agent.page.charts import COLOURS, Curve, chart, document, figure, over_rounds, table, ticks
from protocol.messages.control import TaskKind, TaskSpec
from tests.kit.present import present

# --- scoring ----------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(5)


def predicted(kind: TaskKind, outputs: Any, y: Any, train: Predicted | None = None) -> Predicted:
    return Predicted(TaskSpec(kind=kind), np.array(outputs, np.float32), np.array(y), train)


def survival(n: int, seed: int, train: Predicted | None = None) -> Predicted:
    random = np.random.default_rng(seed)
    eta = random.normal(size=n)
    time = random.exponential(np.exp(-eta)) + 0.01
    censored = random.exponential(2.0, n) + 0.01
    y = np.column_stack([np.minimum(time, censored), time <= censored]).astype(np.float32)
    return predicted(TaskKind.SURVIVAL, eta[:, None], y, train)


FITTED = survival(200, 1)
ODDS = np.log(np.array([0.9, 0.6, 0.2, 0.3, 0.8]) / np.array([0.1, 0.4, 0.8, 0.7, 0.2]))
PARTS: dict[str, Predicted] = {
    "two classes": predicted(TaskKind.CLASSES, np.stack([np.zeros(5), ODDS], 1), [1, 1, 0, 1, 0]),
    "three classes": predicted(TaskKind.CLASSES, RANDOM.normal(size=(60, 3)), np.arange(60) % 3),
    "labels": predicted(TaskKind.MULTI_LABEL, RANDOM.normal(size=(40, 2)), RANDOM.integers(0, 2, (40, 2)) * 1.0),
    "numbers": predicted(TaskKind.REGRESSION, [[1.0], [2.0], [4.0]], np.array([[1.0], [3.0], [2.0]], np.float32)),
    "counts": predicted(TaskKind.COUNTS, np.log([[1.0], [2.0], [4.0]]), np.array([[1.0], [3.0], [2.0]], np.float32)),
    "survival": survival(120, 2, FITTED),
}
CLOSED: dict[str, dict[MetricName, float]] = {
    "two classes": {
        MetricName.ACCURACY: 3 / 5,
        MetricName.BALANCED_ACCURACY: (2 / 3 + 1 / 2) / 2,
        MetricName.AUROC: 4 / 6,
        MetricName.F1: 4 / 6,
        MetricName.BRIER: (0.1**2 + 0.4**2 + 0.2**2 + 0.7**2 + 0.8**2) / 5,
        MetricName.LOG_LOSS: -math.log(0.9 * 0.6 * 0.8 * 0.3 * 0.2) / 5,
        MetricName.AUPRC: 1 / 3 * (1 + 2 / 3 + 3 / 4),
    },
    "numbers": {MetricName.RMSE: math.sqrt(5 / 3), MetricName.MAE: 1.0, MetricName.R2: 1 - 5 / 2},
    "counts": {
        MetricName.RMSE: math.sqrt(5 / 3),
        MetricName.POISSON_DEVIANCE: 2 / 3 * (3 * math.log(3 / 2) - 1 + 2 * math.log(2 / 4) + 2),
    },
}


@pytest.mark.parametrize("name", list(PARTS))
def test_every_metric_of_a_task_has_a_value(name: str) -> None:
    found = scores(PARTS[name])
    assert all(score.value is not None for score in found), found
    wanted = {metric.value for metric in METRICS[PARTS[name].task.kind]}
    assert {score.name for score in found} == wanted - ({"calibration_slope"} if name == "three classes" else set())
    for metric, value in CLOSED.get(name, {}).items():
        assert value_of(found, metric) == pytest.approx(value, rel=1e-5), metric


def test_a_calibration_slope_is_that_of_a_logistic_regression() -> None:
    odds = RANDOM.normal(size=300)
    y = (RANDOM.random(300) < 1 / (1 + np.exp(-0.5 * odds))).astype(np.int64)
    part = predicted(TaskKind.CLASSES, np.stack([np.zeros(300), odds], 1), y)
    theirs = LogisticRegression(C=1e9).fit(odds[:, None], y).coef_[0, 0]
    assert value_of(scores(part), "calibration_slope") == pytest.approx(theirs, rel=1e-3)
    curve = final_scores(part, 0, 0).calibration
    assert [bin.predicted for bin in curve] == sorted(bin.predicted for bin in curve)
    assert np.mean([bin.observed for bin in curve]) == pytest.approx(y.mean(), abs=1e-6)


def test_survival_is_scored_as_scikit_survivals_own_model_is() -> None:
    """A Cox model of theirs, scored by their functions and through its log hazards by ours."""
    train, test = survival(200, 3), survival(150, 4)
    X, held = (
        part.outputs.astype(float) + np.random.default_rng(9).normal(size=(len(part.y), 1)) for part in (train, test)
    )
    outcome, held_outcome = (
        np.array([(bool(e), t) for t, e in part.y], dtype=[("event", bool), ("time", float)]) for part in (train, test)
    )
    model = CoxPHSurvivalAnalysis().fit(X, outcome)
    ours = predicted(TaskKind.SURVIVAL, model.predict(X)[:, None], train.y)
    found = scores(predicted(TaskKind.SURVIVAL, model.predict(held)[:, None], test.y, ours))
    assert value_of(found, "c_index") == pytest.approx(model.score(held, held_outcome), abs=1e-6)
    within = held_outcome["time"] < outcome["time"].max()
    known = held_outcome["time"][within & held_outcome["event"]]
    times = np.linspace(known.min(), np.nextafter(known.max(), 0), 50)
    curves = np.stack([curve(times) for curve in model.predict_survival_function(held[within])])
    theirs = integrated_brier_score(outcome, held_outcome[within], curves, times)
    assert value_of(found, "integrated_brier") == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(
    ("part", "metric", "said"),
    [
        (predicted(TaskKind.CLASSES, [[0, 1], [1, 0]], [1, 1]), "auroc", "no example of class 0"),
        (predicted(TaskKind.CLASSES, [[0, 1], [1, 0]], [1, 1]), "calibration_slope", "no example of class 0"),
        (predicted(TaskKind.CLASSES, [[0, 1], [1, 0]], [1, 0]), "calibration_slope", "wholly separated"),
        (predicted(TaskKind.CLASSES, np.zeros((8, 2)), np.arange(8) % 2), "calibration_slope", "odds hardly differ"),
        (predicted(TaskKind.CLASSES, [[0, np.nan], [1, 0]], [1, 0]), "accuracy", "outputs are not finite"),
        (predicted(TaskKind.MULTI_LABEL, [[0.0], [1.0]], np.ones((2, 1))), "auprc", "no example of class 0"),
        (predicted(TaskKind.REGRESSION, [[0.0], [1.0]], np.ones((2, 1))), "r2", "do not vary"),
        (predicted(TaskKind.REGRESSION, np.ones((60, 1)), np.full((60, 1), 98.6, np.float32)), "r2", "do not vary"),
        (predicted(TaskKind.SURVIVAL, [[0.0], [1.0]], [[1, 0], [2, 0]], FITTED), "c_index", "has no event"),
        (predicted(TaskKind.SURVIVAL, [[0.0], [1.0]], [[1, 0], [2, 1]], FITTED), "c_index", "no two examples"),
        (predicted(TaskKind.SURVIVAL, [[0.0], [1.0]], [[1, 1], [2, 0]], FITTED), "integrated_brier", "fewer than two"),
        (predicted(TaskKind.SURVIVAL, [[0.0]], [[1, 1]]), "integrated_brier", "no training part"),
    ],
)
def test_what_cannot_be_computed_has_a_reason_and_the_others_go_on(part: Predicted, metric: str, said: str) -> None:
    found = scores(part)
    score = next(score for score in found if score.name == metric)
    assert score.value is None
    assert said in score.reason
    assert said in shown_score(score)


def test_intervals_are_seeded_hold_the_value_and_narrow_with_the_examples() -> None:
    def interval(n: int) -> Score:
        random = np.random.default_rng(1)
        y = random.integers(0, 2, n)
        odds = y + random.normal(size=n)
        part = predicted(TaskKind.CLASSES, np.stack([np.zeros(n), odds], 1), y)
        once, again = (final_scores(part, 8, 3) for _ in range(2))
        assert once == again != final_scores(part, 8, 4)
        return next(score for score in once.scores if score.name == "auroc")

    few, many = interval(40), interval(400)
    for score in (few, many):
        assert present(score.low) < present(score.value) < present(score.high)
    assert many.high - many.low < few.high - few.low  # type: ignore[operator]  # asserted above
    assert "[0." in shown_score(many)


def test_without_draws_or_values_there_is_no_interval() -> None:
    part = predicted(TaskKind.CLASSES, [[0, 1], [1, 0], [0, 2]], [1, 1, 1])
    assert all(score.low is None for score in final_scores(part, 0, 0).scores)
    found = {score.name: score for score in final_scores(part, 8, 0).scores}
    assert found["auroc"].low is None
    assert found["accuracy"].low is not None


# --- followed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("examples", [10, 11, 100, 997])
@pytest.mark.parametrize("levels", [4, 10**9])
def test_the_bits_are_those_of_scikit_learn(classes: int, examples: int, levels: int) -> None:
    random = np.random.default_rng([classes, examples, levels])
    y = random.permutation(np.append(np.arange(classes), random.integers(0, classes, examples - classes)))
    p = random.multinomial(levels, random.dirichlet(np.full(classes, 0.3), examples)) / levels
    area = (
        metrics.roc_auc_score(y, p[:, 1])
        if classes == 2
        else metrics.roc_auc_score(y, p, multi_class="ovr", labels=np.arange(classes))
    )
    assert area_under_roc(y, p) == area
    assert mean_log_loss(y, p) == metrics.log_loss(y, p, labels=np.arange(classes))
    likeliest = scores(predicted(TaskKind.CLASSES, p, y), {MetricName.ACCURACY})
    assert value_of(likeliest, "accuracy") == metrics.accuracy_score(y, p.argmax(axis=1))


def test_one_score_for_everybody_is_half() -> None:
    y, p = np.array([0, 1, 1]), np.full((3, 2), 0.5)
    assert area_under_roc(y, p) == metrics.roc_auc_score(y, p[:, 1]) == 0.5


@pytest.mark.parametrize("label", [-1, 2])
def test_a_class_that_the_model_does_not_know_has_no_log_loss(label: int) -> None:
    with pytest.raises(NotComputable, match="classes beyond the model's 2"):
        mean_log_loss(np.array([0, label]), np.full((2, 2), 0.5))


# --- curves -----------------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*curves: Curve, floor: float | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(chart(curves, "weight", floor))


def test_a_line_and_an_entry_of_the_legend_for_each_curve_with_numbers() -> None:
    root = drawn(Curve("c1", ((1, 1.0), (2, 0.5))), Curve("c2", ()), Curve("c3", ((2, 0.25),)))
    assert len(list(root.iter(f"{SVG}polyline"))) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 1  # a single round is a point
    legend = next(group for group in root.iter(f"{SVG}g") if group.get("id") == "legend")
    assert [text.text for text in legend.iter(f"{SVG}text")] == ["c1", "c3"]


def test_points_lie_where_their_numbers_are() -> None:
    root = drawn(Curve("c1", ((1, 0.0), (3, 1.0), (5, 0.5))), floor=0.0)
    (line,) = root.iter(f"{SVG}polyline")
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, p.split(","))) for p in str(line.get("points")).split()]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)
    assert y1 - y3 == pytest.approx(y3 - y2, abs=0.11)
    assert y2 < y3 < y1  # up is more


def test_numbers_that_are_none_are_left_out() -> None:
    text = over_rounds("weight", [("c1", 1, math.nan), ("c1", 2, math.inf), ("c1", 3, 0.5), ("c1", 4, 0.25)])
    assert "nan" not in text
    assert "inf" not in text
    assert over_rounds("weight", [("c1", 1, math.inf)]) == ""
    assert "no numbers" in chart([Curve("c1", ((1, math.nan),))], "weight")
    assert "no numbers" in chart([], "weight")


@pytest.mark.parametrize("value", [0.0, 1e-9, 7.0, 1e12])
def test_a_curve_that_does_not_change_has_an_axis(value: float) -> None:
    assert "polyline" in chart([Curve("c1", ((1, value), (2, value)))], "weight")


def test_ticks_are_round_and_few() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(0.5, 1.5, whole=True) == [1]
    assert ticks(1, 60, whole=True) == [10, 20, 30, 40, 50, 60]
    assert all(2 <= len(ticks(0.0, high)) <= 11 for high in (1e-12, 0.3, 7.0, 123456.0))


def test_more_curves_than_colours_differ_by_their_dashes() -> None:
    many = len(COLOURS) + 1
    root = drawn(*(Curve(f"c{n}", ((1, n), (2, n))) for n in range(many)))
    lines = [(line.get("stroke"), line.get("stroke-dasharray")) for line in root.iter(f"{SVG}polyline")]
    assert len(set(lines)) == many


def test_names_stay_text() -> None:
    hostile = '"><script>alert(1)</script>\x1b]0;owned'
    page = document(hostile, figure(hostile, hostile, chart([Curve(hostile, ((1, 1.0),))], hostile)))
    page += table((hostile,), [(hostile,)])
    assert "<script" not in page
    assert "\x1b" not in chart([Curve(hostile, ((1, 1.0),))], "weight")


def test_columns_of_numbers_stand_to_the_right() -> None:
    made = table(("site", "sums"), [("c1", "1,000"), ("c2", "")])
    assert "<th>site</th><th class=n>sums</th>" in made
    assert "<td>c1</td><td class=n>1,000</td>" in made
