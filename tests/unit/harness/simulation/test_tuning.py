"""Settings are chosen on the requester's validation part, never on its test part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.datasets import registry
from harness.datasets.site_data import Federation
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, run_case, without_leaving_one_out
from harness.simulate.run_line import RunLine
from harness.simulate.tuning import TuningLine, choose, combinations
from protocol.errors import ConfigurationError
from tests.unit.harness.datasets_files import small_titanic
from tests.unit.harness.test_paper_datasets import passenger

TEXT = """
name = "try"
rounds = 3
[case]
data = "titanic"
split = "age_strict"
requesters = ["up-to-20", "over-35"]
seeds = [0]
tuning_seeds = [5, 6]
validation_share = {share}
tuned_for = "{tuned_for}"
[model]
kind = "linear"
inputs = [9]
[training]
batch_size = 8
[parameters]
clip_norm = 16.0
[[variant]]
name = "tuned"
rule = {{ name = "local" }}
[variant.tune]
"training.server_learning_rate" = [0.001, 0.5]
"training.l2" = [0.0, 0.1]
[[variant]]
name = "plain"
rule = {{ name = "local" }}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ages = [str(5 + n % 55) for n in range(160)] + [""] * 20
    small_titanic(monkeypatch, tmp_path, [passenger(age, n % 2, n, str(n)) for n, age in enumerate(ages)])
    return tmp_path


def parsed(share: float = 0.25, tuned_for: str = "all_requesters"):
    return parse_case(TEXT.format(share=share, tuned_for=tuned_for), "case.toml")


def line(settings: dict, requester: str, seed: int, accuracy: float) -> TuningLine:
    return TuningLine(
        variant="tuned",
        requester=requester,
        seed=seed,
        settings=settings,
        study_digest="00",
        validation_accuracy=accuracy,
    )


def test_the_best_mean_wins_and_the_first_among_equals() -> None:
    variant = parsed().variant("tuned")
    tried = [{setting.key: setting.value for setting in one} for one in combinations(variant)]
    assert len(tried) == 4
    scores = {"a": (0.5, 0.9, 0.7, 0.6), "b": (0.9, 0.5, 0.7, 0.6)}
    lines = [
        line(settings, requester, seed, score)
        for requester, of in scores.items()
        for settings, score in zip(tried, of, strict=True)
        for seed in (5, 6)
    ]
    assert choose(variant, lines, "a").chosen == tried[1]
    assert choose(variant, lines, "b").chosen == tried[0]
    together = choose(variant, lines, None)
    # the first three have mean .7 over both requesters
    assert together.chosen == tried[0]
    assert [one.validation_score for one in together.candidates] == pytest.approx([0.7, 0.7, 0.7, 0.6], rel=1e-12)
    assert [one.runs for one in together.candidates] == [4] * 4


@pytest.mark.parametrize("tuned_for", ["all_requesters", "each_requester"])
def test_choices_are_made_once_written_down_and_used(folder: Path, tuned_for: str) -> None:
    options = CaseOptions(folder / "out", folder)
    lines = run_case(parsed(tuned_for=tuned_for), options)
    choices = json.loads((folder / "out" / "choices_tuned.json").read_text())
    assert [choice["requester"] for choice in choices] == (
        [None] if tuned_for == "all_requesters" else ["up-to-20", "over-35"]
    )
    chosen = {choice["requester"]: choice["chosen"] for choice in choices}
    for run in lines:
        expected = {} if run.variant == "plain" else chosen.get(run.requester, chosen.get(None))
        assert run.settings == expected
    tried = (folder / "out" / "tuning.jsonl").read_text()
    assert len(tried.splitlines()) == 4 * 2 * 2
    assert run_case(parsed(tuned_for=tuned_for), options) == lines
    assert (folder / "out" / "tuning.jsonl").read_text() == tried


def test_tuning_runs_see_no_test_example_and_reported_runs_train_on_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[int, int, int]] = []
    load = registry.SOURCES["titanic"].load

    def watched(request: registry.DataRequest) -> Federation:
        federation = load(request)
        if request.requester is not None:
            loaded.append((request.seed, len(federation.requester.validation), len(federation.requester.train)))
        return federation

    monkeypatch.setitem(registry.SOURCES, "titanic", registry.DataSource(watched, has_splits=True))
    lines = run_case(parsed(), CaseOptions(folder / "out", folder))
    assert {validation > 0 for seed, validation, _ in loaded if seed in (5, 6)} == {True}
    assert {validation for seed, validation, _ in loaded if seed == 0} == {0}
    assert all(value is None for run in lines for value in run.validation_accuracy)
    # the test accuracy of a tuning run is in no file
    assert "test" not in (folder / "out" / "tuning.jsonl").read_text()


def test_a_finish_that_leaves_one_out_is_no_part_of_choosing_and_one_that_holds_out_is() -> None:
    text = TEXT.format(share=0.25, tuned_for="all_requesters")
    studies = [
        parse_case(f"{text}finish = {finish}\n", "case.toml").variants[1].study
        for finish in ('{ choose = "leave_one_out" }', "{ held_out = 0.2 }")
    ]
    left_out, held_out = (without_leaving_one_out(study) for study in studies)
    assert left_out == studies[0].model_copy(update={"finish": None})
    assert held_out == studies[1]
    assert held_out.finish is not None


def test_tuning_without_validation_examples_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"requester 'up-to-20' has none .*: give \[case\] validation_share"):
        run_case(parsed(share=0.0), CaseOptions(folder / "out", folder))


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_a_diverged_combination_counts_as_no_accuracy_and_a_diverged_run_is_reported(folder: Path) -> None:
    text = TEXT.format(share=0.25, tuned_for="all_requesters")
    # at this rate the l2 term leaves float32's range in the second round
    case = parse_case(text.replace("0.001, 0.5", "1e38, 0.5").replace("0.0, 0.1", "0.1"), "case.toml")
    lines = run_case(case, CaseOptions(folder / "out", folder, only=("tuned",)))
    assert all(run.settings["training.server_learning_rate"] == 0.5 for run in lines)
    (choice,) = json.loads((folder / "out" / "choices_tuned.json").read_text())
    assert choice["candidates"][0]["validation_score"] == 0.0
    wild = text.replace("batch_size = 8", "batch_size = 8\nserver_learning_rate = 1e38\nl2 = 0.1")
    failed = run_case(parse_case(wild, "case.toml"), CaseOptions(folder / "wild", folder, only=("plain",)))
    assert {run.end for run in failed} == {"failed"}
    assert all("diverged" in run.reason and len(run.kind) < 3 for run in failed)
    assert all(RunLine.model_validate_json(run.model_dump_json()) == run for run in failed)
