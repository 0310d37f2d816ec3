"""Cases from Python: the same runs as from a file, frames with a row per run, per round, and per site and round."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moiety
from harness.api import Case, Study
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.study_files import STUDIES, study_names
from moiety import Results, load_results, simulate
from protocol.errors import ConfigurationError

# --- api --------------------------------------------------------------------------------------------------------------

TEXT = """
name = "try"
rounds = 2
list_every = 2
[case]
data = "breast_cancer"
seeds = [0, 1]
[case.policy]
least_isolation = 0.0
[model]
kind = "linear"
inputs = [30]
[parameters]
clip_norm = 4.0
[[variant]]
name = "erosion"
rule = { name = "weight_erosion", distance_penalty = 0.05 }
"""
STUDY = Study("try", 2, {"kind": "linear", "inputs": [30]}, {"clip_norm": 4.0}, others={"list_every": 2})
CASE = Case(
    STUDY,
    "breast_cancer",
    {"erosion": {"rule": {"name": "weight_erosion", "distance_penalty": 0.05}}},
    range(2),
    {"policy": {"least_isolation": 0.0}},
)


@pytest.fixture(scope="module")
def results() -> Results:
    return simulate(CASE)


def test_a_case_in_python_is_the_case_of_its_file(results: Results, tmp_path: Path) -> None:
    lines = run_case(parse_case(TEXT.replace("[case]", '[rule]\nname = "fedavg"\n[case]'), "t"), CaseOptions(tmp_path))
    assert [line.final_model for line in results.lines] == [line.final_model for line in lines]
    again = load_results(tmp_path)
    assert (
        again.runs()
        .drop(columns=["seconds", "study_digest"])
        .equals(results.runs().drop(columns=["seconds", "study_digest"]))
    )  # a table that is left out of a file is not in its digest


def test_frames_hold_what_the_lines_hold(results: Results) -> None:
    runs, rounds, sites = results.runs(), results.rounds(), results.sites()
    line = results.lines[1]
    assert runs[["variant", "seed", "end"]].to_numpy().tolist() == [
        ["erosion", 0, "completed"],
        ["erosion", 1, "completed"],
    ]
    assert runs["test_accuracy"][1] == line.test_accuracy[-1]
    assert len(rounds) == 4
    assert rounds.query("seed == 1")["test_loss"].tolist() == list(line.test_loss)
    assert rounds["validation_accuracy"].notna().all()
    assert len(sites) == 2 * 2 * 4
    site, values = next(iter(line.alpha.items()))
    assert sites[(sites["seed"] == 1) & (sites["site"] == site)]["alpha"].tolist() == list(values)
    assert sites["took_part"].all()
    assert sites["inner_product"].isna().all() if "inner_product" in sites else True
    assert results.summary().rows[0].runs == 2


def test_the_table_has_a_row_a_variant_and_the_plot_a_curve(results: Results, tmp_path: Path) -> None:
    table = results.table()
    (row,) = table.to_dict("records")
    (summed,) = results.summary().rows
    assert (row["variant"], row["runs"], row["accuracy"]) == ("erosion", 2, summed.last_round.mean)
    assert (row["accuracy_se"], row["log_loss"]) == (summed.last_round.standard_error, summed.scores["log_loss"].mean)
    assert list(table)[:3] == ["variant", "requester", "accuracy"]  # 80 columns show them
    (axes,) = results.plot().axes
    assert [line.get_label() for line in axes.lines] == ["erosion"]
    assert np.asarray(axes.lines[0].get_ydata())[-1] == pytest.approx(summed.last_round.mean)
    results.plot().savefig(tmp_path / "curves.png")
    assert repr(results) == "<Results of try: 2 runs; table(), plot(), runs(), rounds() and sites() show them>"
    for of_nothing in (Results(()).table, Results(()).plot):
        with pytest.raises(ConfigurationError, match="no finished run"):
            of_nothing()
    assert "nothing: 0 runs" in repr(Results(()))


def test_further_keys_have_one_name_and_the_task_its_own() -> None:
    study = Study(
        "s", 2, {"kind": "linear", "inputs": [9], "outputs": 1}, {"clip_norm": 4.0}, task={"kind": "survival"}
    )
    case = Case(study, "breast_cancer_survival", others={"bootstrap": 3}).checked()
    assert (case.judged_by, case.table.bootstrap) == ("c_index", 3)
    assert "task" not in STUDY.tables


def test_the_seed_of_a_study_is_used_unless_seeds_are_given() -> None:
    seeded = replace(STUDY, others={"seed": 7, "list_every": 2})
    assert Case(seeded, "breast_cancer").checked().table.seeds == [7]
    assert Case(seeded, "breast_cancer", seeds=[3, 4]).checked().table.seeds == [3, 4]
    assert Case(STUDY, "breast_cancer").checked().table.seeds == [0]
    with pytest.raises(ConfigurationError, match="seeds"):
        Case(STUDY, "breast_cancer", seeds=[]).checked()


def test_what_has_no_number_is_missing(results: Results) -> None:
    line = results.lines[0].model_copy(update={"test_loss": (0.5, None)})
    assert math.isnan(Results((line,)).rounds()["test_loss"].iloc[1])


@pytest.mark.parametrize("name", study_names()[::6])
def test_a_case_that_comes_along_is_the_same_in_python(name: str) -> None:
    tables = Case.read(STUDIES / f"{name}.toml").tables
    assert Study.read(name).name == tables["name"]
    assert {variant["name"] for variant in tables["variant"]}


def test_a_study_needs_its_data_and_a_case_has_them(tmp_path: Path) -> None:
    found = simulate(STUDY, tmp_path / "out", data="breast_cancer", seeds=[4])
    assert found.runs()[["variant", "seed"]].to_numpy().tolist() == [["fedavg", 4]]
    assert (tmp_path / "out" / "summary.json").exists()
    with pytest.raises(ConfigurationError, match="give data, the name of a data set"):
        simulate(STUDY)
    with pytest.raises(ConfigurationError, match="a case says itself"):
        simulate(CASE, data="digits")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"protection": "none"}, "protection: found 'none', allowed are plain, secure, ckks"),
        ({"seeds": []}, "seeds: found"),
        ({"only": "erosion"}, "only: found 'erosion'; give a list"),
        ({"only": ["other"]}, "no variant 'other'"),
        ({"plugins": ["nowhere.py"]}, "nowhere.py does not exist"),
    ],
)
def test_wrong_options(wrong: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        simulate(CASE, **wrong)


def test_folders_that_are_not_alike_are_not_loaded_together(results: Results, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no results.jsonl"):
        load_results(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        line = results.lines[0].model_copy(update={"case": name})
        (tmp_path / name / "results.jsonl").write_text(line.model_dump_json() + "\n")
    with pytest.raises(ConfigurationError, match="two cases"):
        load_results(tmp_path / "one", tmp_path / "two")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "harness.api", raising=False)
    for module in [name for name in sys.modules if name.startswith("harness.api.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas; install it with: pip install 'moiety\[harness\]'"):
        _ = moiety.simulate
    with pytest.raises(AttributeError, match="has no attribute 'simulated'"):
        _ = moiety.simulated


# --- notebook ---------------------------------------------------------------------------------------------------------

NOTEBOOK = Path(__file__).parents[3] / "docs" / "examples" / "simulating.ipynb"


def test_the_notebook_runs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, text in enumerate(code):
        exec(compile(text, f"cell {number}", "exec"), names)
    runs = names["results"].runs()
    assert len(runs) == 12
    assert set(runs["end"]) == {"completed"}
    assert runs["test_accuracy"].min() > 0.8
    assert names["weights"].shape == (10, 4)
    assert (names["weights"].diff().iloc[1:] <= 0).all().all()
    mine = names["mine"].runs()
    assert set(mine["requester"]) == {"north", "south", "east", "west"}
    assert names["again"].runs()["test_accuracy"].tolist() == mine["test_accuracy"].tolist()
