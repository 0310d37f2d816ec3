"""The Titanic page: comparable rates, the hindsight figure, the published FedAvg."""

import json
from pathlib import Path

from harness.datasets.titanic import SITES
from harness.papers import titanic
from harness.papers.page import Page
from harness.papers.tables.by_rule import RuleRow, rules_table
from harness.simulate.charts import Spread
from harness.simulate.run_line import RunLine
from tests.unit.harness.papers.made import line


def runs_of(accuracies: dict[str, tuple[float, float]]) -> dict[str, list[RunLine]]:
    """Two seeds of every variant for every requester of both splits."""
    return {
        case: [
            line(variant, user, seed, (0.5, last), settings=SETTINGS.get(variant, {}), final_model=(0.0,) * 20)
            for variant, both in accuracies.items()
            for user in SITES[split]
            for seed, last in enumerate(both)
        ]
        for case, split in titanic.CASES.items()
    }


SETTINGS = {"weight_erosion_tuned": {"rule.distance_penalty": 0.03, "training.server_learning_rate": 2.5}}
BASELINES = {"local": (0.70, 0.74), "fedavg": (0.75, 0.77)}


def written(tmp_path: Path, runs: dict[str, list[RunLine]], data: Path | None = None) -> str:
    page = Page(tmp_path / "titanic.md", "Titanic")
    titanic.write(page, runs, data)
    page.write()
    return page.path.read_text(encoding="utf-8")


def test_every_row_says_its_rate_in_the_reports_units(tmp_path):
    text = written(tmp_path, runs_of(BASELINES | {"weight_erosion_tuned": (0.71, 0.73)}))
    assert "| Local | 3 | .720 ± .020 |" in text
    assert "| FedAvg | 3 | **.760 ± .010** |" in text
    assert "| WE, tuned | 5 | .720 ± .010 |" in text
    assert "Chosen on validation examples: WE rate 5, distance penalty 0.03." in text
    assert "| *published: FedAvg, row sums* | 0.07 | .672 | .606 | .298 | .553 |  |" in text


def test_a_rule_is_compared_with_the_better_baseline_of_each_requester(tmp_path):
    text = written(tmp_path, runs_of(BASELINES | {"multi_krum": (0.80, 0.82)}))
    assert "accuracy of .760: a rule that beats it" in text
    assert "| multi-Krum | .810 | 8 / 0 / 0 | none | none | **+0.050 ± 0.000** |" in text
    assert "Clearly above it: multi-Krum." in text
    without = written(tmp_path, runs_of(BASELINES))
    assert "No rule here is clearly above it; the nearest is FedAvg." in without


def test_the_published_fedavg_is_shown_beside_runs_with_its_mistake(tmp_path):
    runs = runs_of(BASELINES | {"fedavg_as_published": (0.4, 0.8)})
    targets = tmp_path / "targets"
    targets.mkdir()
    curves = {
        split.upper(): {f"user_{user}": {"global_fedavg": [0.1, 0.3, 0.7]} for user in range(4)}
        for split in titanic.CASES.values()
    }
    (targets / "titanic_weight_erosion_curves.json").write_text(json.dumps(curves))
    text = written(tmp_path, runs, tmp_path)
    row = "| age_some, over-35 | .700 | .600 (.400 to .800) | .400 | .200 ± .100 | .260 ± .010 |"
    assert row in text
    assert "| age_some, over-35 | no data | .600 (.400 to .800) | no data |" in written(tmp_path, runs)
    assert "The published FedAvg\n" not in written(tmp_path, runs_of(BASELINES))


def test_the_best_of_a_column_is_bold_and_quoted_rows_are_not_compared(tmp_path):
    page = Page(tmp_path / "page.md", "Rules")
    rows = [RuleRow("a", ("3",), (Spread(0.5, None, 1), None)), RuleRow("b", ("3",), (Spread(0.6, None, 1), None))]
    rules_table(page, ["site"], rows, [RuleRow("quoted", ("1",), (".900",))], ("rate",))
    page.write()
    text = page.path.read_text(encoding="utf-8")
    assert "| a | 3 | .500 | none |" in text
    assert "| b | 3 | **.600** | none |" in text
    assert "| quoted | 1 | .900 |  |" in text


def test_a_rule_with_fewer_halves_says_so_and_missing_ones_are_named(tmp_path):
    runs = runs_of(BASELINES | {"multi_krum": (0.80, 0.82)})
    some = {case: [one for one in of if (one.variant, one.seed) != ("multi_krum", 1)] for case, of in runs.items()}
    text = written(tmp_path, some)
    assert "| multi-Krum (1 of 2 halves so far) | 3 | .800 |" in text
    assert "| FedAvg | 3 | **.760 ± .010** |" in text
    assert "**Not run yet:** FedAvg by samples; WFedAvg;" in text


def test_a_page_without_runs_says_so(tmp_path):
    assert written(tmp_path, {}).count("**Not run yet.**") == 2
