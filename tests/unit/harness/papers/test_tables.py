"""Tables and plots from made lines: means, differences with the same seed, and who is clearly better."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from client_agent.learning.scores import MetricName
from harness.datasets.titanic import SITES
from harness.papers import tables
from harness.papers.tables import (
    BETTER,
    LOCAL,
    LOSS,
    Scores,
    counts,
    less_table,
    scores_table,
    signed,
    tally,
    unfinished,
    with_rules_alone,
)
from harness.simulate.charts import Spread
from harness.simulate.run_line import RunLine
from harness.simulate.store import Results
from tests.kit.present import present
from tests.unit.harness.papers.made import line


def keep(runs: Path, case: str, lines: list[RunLine]) -> None:
    results = Results(runs / case)
    with results.held():
        for one in lines:
            results.append(one)


def lost(variant: str, requester: str, seed: int, *loss: float, **changes: object) -> RunLine:
    return line(variant, requester, seed, (0.5,) * len(loss), **{"test_loss": loss, **changes})


def study() -> list[RunLine]:
    """At "a" FedAvg is better, at "b" training alone; Mallows is clearly above at "a", clearly below at "b"."""
    of = {
        ("local", "a"): (0.6, 0.7),
        ("fedavg", "a"): (0.4, 0.5),
        ("mallows", "a"): (0.30, 0.41),
        ("local", "b"): (0.2, 0.3),
        ("fedavg", "b"): (0.8, 0.7),
        ("mallows", "b"): (0.40, 0.51),
    }
    return [lost(rule, name, seed, 0.9, loss) for (rule, name), both in of.items() for seed, loss in enumerate(both)]


def test_rules_are_compared_on_the_same_seed() -> None:
    accuracy = {("weight_erosion", 0): 0.8, ("weight_erosion", 1): 0.6, ("local", 0): 0.5, ("local", 1): 0.4}
    lines = [line(variant, seed=seed, accuracy=(a,)) for (variant, seed), a in accuracy.items()]
    scores = Scores([*lines, line("weight_erosion", seed=2, accuracy=(0.9,))])
    (less,) = scores.less("weight_erosion", LOCAL).values()
    assert less.mean == pytest.approx(0.25, abs=2.0**-52)  # two differences of numbers below 1
    assert signed(less) == "**+0.250 ± 0.050**"
    assert (counts([less], MetricName.ACCURACY), counts([less], LOSS)) == ((1, 0), (0, 1))
    rules = {"local": "Local", "weight_erosion": "WE"}
    head, row = less_table(scores, rules, MetricName.ACCURACY)
    assert head == ("accuracy (larger is better)", "site-0", "better / same / worse")
    assert row == ("WE", "**+0.250 ± 0.050**", "1 / 0 / 0")
    assert tally({}, LOSS) == "none"


def test_a_mean_over_requesters_leaves_incomplete_seeds_out() -> None:
    lines = [line("fedavg", "a", 0, (0.2,)), line("fedavg", "b", 0, (0.4,)), line("fedavg", "a", 1, (0.9,))]
    found = present(Scores(lines).over_requesters("fedavg"))
    assert (found.mean, found.count) == (pytest.approx(0.3, abs=2.0**-52), 1)  # a mean of numbers below 1
    assert Scores(lines).over_requesters("local") is None


def test_the_best_of_a_column_is_bold_and_quoted_rows_are_not_compared() -> None:
    lines = [
        line("local", accuracy=(0.5,)),
        line("fedavg", accuracy=(0.6,)),
        line("fedavg", "b", 1, (0.7,), end="failed"),
    ]
    table = scores_table(Scores(lines), {"local": "Local", "fedavg": "FedAvg"}, quoted=[("quoted", ".900", ".9")])
    assert table[0] == ("rule", "b", "site-0", "mean")
    assert table[1] == ("Local", "none", ".500", "none")
    assert table[2] == ("FedAvg", "**.700**", "**.600**", "none")
    assert table[3] == ("quoted", ".900", ".9", "")


def test_the_better_of_both_is_chosen_for_each_requester_by_its_mean() -> None:
    scores = Scores(study())
    assert scores.better_of_both("a").to_dict() == {0: 0.4, 1: 0.5}
    assert scores.better_of_both("b").to_dict() == {0: 0.2, 1: 0.3}
    less = scores.less("mallows", BETTER, LOSS)
    assert (less["a"].mean, less["a"].error) == (pytest.approx(-0.095), pytest.approx(0.005))
    assert tally(less, LOSS) == "1 / 0 / 1"
    assert {name: one.mean for name, one in scores.less("mallows", LOCAL, LOSS).items()} == pytest.approx(
        {"a": -0.295, "b": 0.205}
    )
    alone = Scores([one for one in study() if one.variant != "fedavg"])
    assert alone.less("mallows", BETTER, LOSS) == {}


def test_a_rule_that_failed_is_never_the_better_one_and_shows() -> None:
    lines = [one for one in study() if (one.variant, one.requester, one.seed) != ("fedavg", "a", 0)]
    scores = Scores([*lines, lost("fedavg", "a", 0, end="failed")])
    assert math.isnan(scores.values("fedavg", "a", LOSS)[0])
    assert scores.better_of_both("a").to_dict() == {0: 0.6, 1: 0.7}
    assert str(scores.spread("fedavg", "a", LOSS)) == "failed"


def test_the_rounds_before_a_finish_are_the_rule_alone_unless_that_has_run() -> None:
    kinds = ("released", "released", "finished")
    metrics = {"f1": (0.1, 0.2, 0.3)}
    finished = lost("mallows_finished", "a", 0, 0.5, 0.4, 0.3, kind=kinds, test_metrics=metrics)
    both = with_rules_alone([finished])
    assert [(one.variant, one.test_loss[-1]) for one in both] == [("mallows_finished", 0.3), ("mallows", 0.4)]
    assert both[1].test_metrics == {"f1": (0.1, 0.2)}
    own = lost("mallows", "a", 0, 0.9)
    assert with_rules_alone([finished, own]) == (finished, own)
    assert unfinished(lost("mallows_finished", "a", 1, 0.5, end="failed")).test_loss == (0.5,)


def test_whether_it_pays_is_counted_by_study_and_together(tmp_path: Path) -> None:
    keep(tmp_path, "pays_heart_disease", study())
    found = dict(tables.does_it_pay(tmp_path))
    assert ("**Mallows averaging**", "2", "1", "2", "1 (50 %)", "1 (50 %)", "1 (50 %)", "1 (50 %)") in found[
        "does_it_pay_few"
    ]
    assert ("**Local**", "2", "1", "2", "0 (0 %)", "1 (50 %)", "", "") in found["does_it_pay_few"]
    row = next(row for row in found["does_it_pay_heart_disease"] if row[0] == "Mallows averaging")
    assert row[1:6] == ("2", ".405", "**+0.055 ± 0.005**", "1 / 0 / 1", "1 / 0 / 1")
    assert found["does_it_pay_heart_disease"][-1][:3] == ("*better of both*", "", ".350")
    plain = dict(tables.clinicians(tmp_path))
    assert ("**Mallows averaging**", "1 / 0 / 1", "0 / 2 / 0", "none") in plain["clinicians_heart_disease"]
    assert ("**FedAvg**", "2", "1", "1", "0", "1") in plain["clinicians_together"]


def test_titanic_has_the_reports_rates(tmp_path: Path) -> None:
    accuracies = {"local": (0.70, 0.74), "fedavg": (0.75, 0.77), "weight_erosion_tuned": (0.71, 0.73)}
    settings = {"weight_erosion_tuned": {"training.server_learning_rate": 2.5}}
    lines = [
        line(rule, user, seed, (0.5, last), settings=settings.get(rule, {}))
        for rule, both in accuracies.items()
        for user in SITES["age_strict"]
        for seed, last in enumerate(both)
    ]
    keep(tmp_path, "titanic_age_strict", lines)
    found = dict(tables.titanic(tmp_path))
    rows = {row[0]: row[1:] for row in found["titanic_strict_accuracy"]}
    assert rows["Local"][:2] == ("3", ".720 ± .020")
    assert rows["WE, tuned"][:2] == ("5", ".720 ± .010")
    assert rows["*published: FedAvg, row sums*"] == ("0.07", ".672", ".606", ".298", ".553", "")
    assert not any("age_some" in name for name in found)


def test_curves_and_weights_are_by_requester(tmp_path: Path) -> None:
    keep(tmp_path, "survival", [line("weight_erosion", site, test_c_index=(0.5, 0.75)) for site in ("a", "b")])
    found = dict(tables.survival(tmp_path))
    assert found["plots/survival_c_index"][1] == ("a", "Weight Erosion", 2, 0.75, 0.0)
    assert found["plots/survival_weights"][-1] == ("b asks", "site-1", 2, 0.5, 0.0)


def test_signed_without_an_error() -> None:
    assert signed(Spread(0.5, None, 1)) == "+0.500"
