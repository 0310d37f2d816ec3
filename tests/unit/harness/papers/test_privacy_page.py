"""The privacy page says what its lines say, in plain words too, and names what has not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.adversaries.attack_line import AttackLine, PartyErrors
from harness.adversaries.differencing.lines import DifferencedLine
from harness.adversaries.inferring.lines import Told
from harness.adversaries.inferring.memorised_lines import MemorisedLine
from harness.adversaries.inverting.lines import How, InversionLine, Inverted
from harness.adversaries.inverting.targets import TARGETS
from harness.adversaries.reconstruction import Prior
from harness.papers.attacked import (
    bound_cost,
    differenced_runs,
    inference_runs,
    memorised_runs,
    records_runs,
    sums_runs,
)
from harness.papers.attacked.differenced import whole_study
from harness.papers.attacked.privacy import PrivacyPage
from harness.papers.attacked.records import share
from harness.papers.attacked.sums import SumsPage
from harness.papers.making import Making
from harness.papers.page import Page
from harness.simulation.files.json_lines import append_line
from harness.simulation.files.study_files import STUDIES
from protocol.clauses import Clause
from tests.unit.harness.papers.made import line as made_line

PAGE = PrivacyPage("privacy", "What can they still infer?", STUDIES)
VERSIONS = {"python": "3.11"}


def inverted(seed: int, exact: float, close: float) -> InversionLine:
    def one(how: How, exact: float, close: float) -> Inverted:
        return Inverted(how=how, candidates=4, exact=exact, close=close, noise=None, alike=None)

    attacks = (one(How.ANALYTIC, exact, close), one(How.OPTIMISED, 0.0, 0.1), one(How.GUESSED, 0.0, 0.05))
    return InversionLine(
        target="heart-mlp", sites=1, batch=1, seed=seed, parameters=10, attacks=attacks, seconds=1.0, versions=VERSIONS
    )


def memorised(seed: int, auc: float) -> MemorisedLine:
    told = Told(auc=auc, at_one_percent=0.25)
    return MemorisedLine(
        study="memorising", variant="large_fedavg", rule="fedavg", seed=seed, end="completed", parameters=1234,
        released=2, known=0.99, unknown=0.7, rounds=(1, 2), by_loss=(told, told), by_average=(told, told),
        by_averages=told, members=(True, False), confidence=(2.0, 1.0), seconds=1.0, versions=VERSIONS,
        epsilon={"a": 2.5, "b": 3.0},
    )  # fmt: skip


def differenced(seed: int, predicted: float, difference: float) -> DifferencedLine:
    return DifferencedLine(
        study="heart-disease", variant="fedavg", setting="full batches", requester="cleveland", site="va", seed=seed,
        rule="fedavg", sites=4, parameters=28, weight=1.0, predicted=predicted, difference=difference, average=0.9,
        own=0.8, fitted=0.7, true=0.5, seconds=1.0,
    )  # fmt: skip


def attacked(ended_by: Clause | None, setting: str = "now") -> AttackLine:
    errors = [
        PartyErrors(party=("a",), prior=prior, errors={"b": (0.4, 0.6, None)})
        for prior in (Prior.AVERAGE, Prior.OWN, Prior.TRUE)
    ]
    return AttackLine(
        study="breast-cancer", variant="weight_erosion", setting=setting, requester="a", seed=0, rule="weight_erosion",
        end="local_only", reason="", ended_by=ended_by, parameters=62, test_accuracy=0.9, rounds=(1, 2), lists=1,
        weight={"b": (1.0, 1.0)}, isolation={"a": (0.9, 0.5, 0.1), "b": (0.8, None, 0.1)}, attacks=tuple(errors),
        seconds=1.0, versions=VERSIONS,
    )  # fmt: skip


def keep(path: Path, *lines: InversionLine | MemorisedLine | DifferencedLine | AttackLine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for line in lines:
        append_line(path, line)


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    text = PAGE.write_page(tmp_path / "runs", tmp_path / "out", None).read_text(encoding="utf-8")
    assert text.count("**Not run yet:**") == 3
    assert (
        "**Not run yet** (`moiety results --only differential_privacy`): heart disease, four hospitals; MNIST" in text
    )
    assert "| Was this patient trained on? Studies as shipped | whoever has the last model | not run |" in text
    assert "digits, 10 sites, network | fedavg | not run" in text


def test_with_runs_it_says_what_they_say(tmp_path: Path) -> None:
    keep(tmp_path / records_runs.LINES, inverted(0, 1.0, 1.0), inverted(1, 0.5, 1.0))
    keep(tmp_path / memorised_runs.LINES, *(memorised(seed, auc) for seed, auc in ((0, 0.6), (1, 0.8))))
    keep(tmp_path / differenced_runs.LINES, *(differenced(seed, 0.1 * seed, 0.2) for seed in (1, 2, 3)))
    keep(tmp_path / sums_runs.LINES, attacked(None))
    text = PAGE.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")
    assert "100 % of records of tables, not run of images" in text
    assert "| heart disease, MLP of 64 | 1 | .750 / .000 / .000 | not run |" in text
    assert "70 % of pairs right; 25 of 100 found at one false alarm in a hundred" in text
    assert "| large, FedAvg | 1,234 | 2.5 to 3 | 2 | .990 ± .000 | .700 ± .000 | .700 ± .100, .250 ± .000 |" in text
    assert "| fedavg | full batches | .200 ± .058 | .200 ± .000 | .200 ± .000 | .500 ± .000 |" in text
    assert "| two sums: best | 3 | " in text
    assert "off by .200 of its length" in text
    for figure in ("records", "membership", "differencing", "isolation"):
        assert (tmp_path / "out" / f"privacy_{figure}.svg").read_text().startswith("<svg")


def test_what_a_bound_costs_is_said(tmp_path: Path) -> None:
    """By the runs of the page on noise; an epsilon that a case has not asked for is no number."""
    runs = {
        row.case: [
            made_line(variant=variant, seed=seed, accuracy=(0.5, 0.9 - 0.1 * place + 0.01 * seed))
            for place, variant in enumerate(("fedavg", "fedavg_clipped", "fedavg_8"))
            for seed in (0, 1)
        ]
        for row in bound_cost.ROWS
    }
    page = Page(tmp_path / "page.md", "page")
    bound_cost.write(page, runs)
    bound_cost.write(page, {"noise_heart": runs["noise_heart"]})
    page.write()
    text = page.path.read_text(encoding="utf-8")
    cells = ".905 ± .005 | .805 ± .005 | .705 ± .005 | - |"
    for row in bound_cost.ROWS:
        assert f"| {row.data} | {cells}" in text
    assert text.count("**Not run yet**") == 1
    assert "`moiety results --only differential_privacy`): MNIST, ten sites." in text


def test_the_better_attack_counts_and_nothing_where_nothing_ran() -> None:
    lines = [inverted(0, 0.0, 0.0), inverted(1, 0.0, 0.05)]
    assert share(lines, "heart-mlp", 1, 1, exact=False) == pytest.approx(0.1)
    assert share(lines, "heart-mlp", 2, 1, exact=False) is None


def test_a_whole_studys_prediction_is_of_its_last_sum_and_its_error_of_any_round() -> None:
    found = whole_study(attacked(None))
    assert found is not None
    assert (found.predicted, found.best, found.true, found.average) == (0.5, 0.4, 0.4, 0.4)
    assert whole_study(attacked(None).model_copy(update={"rounds": ()})) is None


def test_what_ended_a_study_is_counted_by_its_clause(tmp_path: Path) -> None:
    title, first = sums_runs.LINEAR[0].key, sums_runs.LINEAR[0].settings[0].name
    lines = [attacked(clause, first).model_copy(update={"study": title}) for clause in (Clause.ISOLATION, None)]
    keep(tmp_path / sums_runs.LINES, *lines)
    page = SumsPage("sums", "What sums give away", STUDIES)
    assert "| 1 of 2 |" in page.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")


def test_what_is_missing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small run of each kind, and none of them twice; whole studies are the sums page's test."""
    monkeypatch.setattr(records_runs, "TARGETS", TARGETS[:1])
    monkeypatch.setattr(records_runs, "SITES", (1,))
    monkeypatch.setattr(records_runs, "BATCHES", (1,))
    monkeypatch.setattr(records_runs, "SEEDS", (0,))
    for module in (memorised_runs, inference_runs, sums_runs):
        monkeypatch.setattr(module, "run_missing", lambda *given: None)
    monkeypatch.setattr(differenced_runs, "SEEDS", (0,))
    monkeypatch.setattr(differenced_runs, "BATCHES", {"batches of 8": differenced_runs.BATCHES["batches of 8"]})
    case = differenced_runs.Differenced("breast_cancer", "breast cancer", ("fedavg",), 3)
    monkeypatch.setattr(differenced_runs, "DIFFERENCED", (case,))
    told: list[str] = []
    making = Making(tmp_path, None, 1, "cpu", told.append)
    PAGE.run_missing(making)
    assert len(told) == 2
    PAGE.run_missing(making)
    assert len(told) == 2
    assert len(records_runs.recorded(tmp_path)) == len(differenced_runs.recorded(tmp_path)) == 1
