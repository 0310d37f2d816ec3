"""Tuning on the validation part, who trains, and the summary over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from harness.datasets import registry
from harness.datasets.site_data import Federation
from harness.engine import updates
from harness.simulate.case import Case, parse_case
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case, without_leaving_one_out
from harness.simulate.command import CaseBar
from harness.simulate.run_line import RunLine
from harness.simulate.summary import Figure, summarise_case, table_of, write_summary
from harness.simulate.tuning import TuningLine, choose, combinations
from protocol.errors import ConfigurationError
from tests.kit.cases import case_text, variant
from tests.unit.harness.datasets_files import small_titanic
from tests.unit.harness.simulation.made import line as made_line
from tests.unit.harness.test_public_data import passenger

# --- tuning -----------------------------------------------------------------------------------------------------------

TUNE = """
[variant.tune]
"training.server_learning_rate" = [0.001, 0.5]
"training.l2" = [0.0, 0.1]
"""


def tuned_text(share: float = 0.25, tuned_for: str = "all_requesters") -> str:
    lines = f"""split = "age_strict"
requesters = ["up-to-20", "over-35"]
tuning_seeds = [5, 6]
validation_share = {share}
tuned_for = "{tuned_for}"
"""
    variants = variant("tuned", TUNE, rule="local"), variant("plain", rule="local")
    return case_text(*variants, data="titanic", case=lines, inputs=9, training="batch_size = 8", clip_norm=16.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ages = [str(5 + n % 55) for n in range(160)] + [""] * 20
    small_titanic(monkeypatch, tmp_path, [passenger(age, n % 2, n, str(n)) for n, age in enumerate(ages)])
    return tmp_path


def parsed(share: float = 0.25, tuned_for: str = "all_requesters"):
    return parse_case(tuned_text(share, tuned_for), "case.toml")


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
    tried = combinations(variant)
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
    text = tuned_text()
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
    text = tuned_text()
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


# --- who trains -------------------------------------------------------------------------------------------------------


def who_trains(rule: str) -> Case:
    policy = "policy = { least_contributors = 1, largest_share = 1.0 }"
    training, parameters = "server_learning_rate = 0.3", "least_contributors = 1"
    text = case_text(rule, rounds=12, case=policy, training=training, parameters=parameters)
    return parse_case(text, "case.toml")


OTHERS = {"county-hospital", "university-clinic", "screening-centre", "oncology-centre"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every site that trains, with the round."""
    seen: list[tuple[str, int]] = []
    train = updates.clipped_update

    def watched(training, site, vector, round_number, *more, **named):
        seen.append((site.name, round_number))
        return train(training, site, vector, round_number, *more, **named)

    for module in ("loop", "run_state"):  # the requester alone; everybody in a shared round
        monkeypatch.setattr(f"harness.engine.{module}.clipped_update", watched)
    return seen


def test_local_trains_the_requester_alone(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    run_case(who_trains(variant("local")), CaseOptions(tmp_path))
    assert trained == [("city-hospital", number) for number in range(1, 13)]


def test_a_site_without_weight_is_not_trained(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    eroding = variant("weight_erosion", distance_penalty=0.15, size_penalty=0.0)
    (line,) = run_case(who_trains(eroding), CaseOptions(tmp_path))
    per_round = [{name for name, number in trained if number == round_} for round_ in range(1, 13)]
    for number, (names, took_part) in enumerate(zip(per_round, line.took_part, strict=True), start=1):
        listed = {site for site, weights in line.weight.items() if weights[number - 1] is not None}
        assert names == {"city-hospital", *took_part} == {"city-hospital", *listed}
    assert per_round[0] == {"city-hospital", *OTHERS}
    assert any(1 < len(names) < 5 for names in per_round)
    assert per_round[-1] == {"city-hospital"}
    assert line.end == "local_only"


def test_progress_is_a_line_a_run_without_a_terminal_and_a_bar_with_one() -> None:
    told = [CaseProgress("try", done, 2, rounds, 6) for done, rounds in ((0, 0), (0, 3), (1, 3), (1, 6), (2, 6))]
    for terminal in (False, True):
        console = Console(force_terminal=terminal, record=True, width=120)
        with CaseBar(console) as bar:
            for progress in told:
                bar.show(progress)
        text = console.export_text()
        if terminal:
            assert "rounds" in text
        else:
            assert text.splitlines() == ["try: 1 of 2 runs", "try: 2 of 2 runs"]


# --- summary ----------------------------------------------------------------------------------------------------------


def result_line(
    variant: str,
    requester: str,
    seed: int,
    accuracy: tuple[float | None, ...],
    alpha: Mapping[str, tuple[float | None, ...]] | None = None,
    end: str = "completed",
) -> RunLine:
    rounds = len(accuracy)
    return made_line(
        variant,
        requester,
        seed,
        accuracy,
        case="try",
        end=end,
        clipped_share=(0.25, *(0.0,) * (rounds - 1)) if rounds else (),
        took_part=((),) * rounds,
        alpha=dict(alpha or {}),
        weight={},
        distance={},
    )


def test_means_and_errors_are_over_seeds() -> None:
    lines = [
        result_line("a", "north", 0, (0.5, 0.9, 0.8)),
        result_line("a", "north", 1, (0.5, 0.6, 0.6)),
        result_line("a", "south", 0, (0.4, 0.4)),
        result_line("a", "south", 1, (0.2, 0.2)),
    ]
    north, south, mean = summarise_case(lines).rows
    # two values: the standard error is half their difference
    assert north.last_round.mean == pytest.approx(0.7, rel=1e-12)
    assert north.last_round.standard_error == pytest.approx(0.1, rel=1e-12)
    assert north.chosen_round is None  # no validation data
    assert (south.requester, south.last_round.mean) == ("south", pytest.approx(0.3, rel=1e-12))
    # per seed the mean over requesters is .6 and .4
    assert (mean.requester, mean.runs) == (None, 4)
    assert mean.last_round.mean == pytest.approx(0.5, rel=1e-12)
    assert mean.last_round.standard_error == pytest.approx(0.1, rel=1e-12)
    assert mean.largest_clipped_share == 0.25
    assert mean.released_rounds == 2.5


def test_one_seed_has_no_error_and_a_failed_run_shows() -> None:
    one, failed = summarise_case(
        [result_line("a", "north", 0, (0.5,)), result_line("b", "north", 0, (), end="failed")]
    ).rows
    assert (one.last_round.mean, one.last_round.standard_error) == (0.5, None)
    assert str(one.last_round) == "0.5000"
    assert failed.last_round == Figure(mean=None, standard_error=None)
    assert (str(failed.last_round), failed.ends) == ("failed", {"failed": 1})


def test_a_mean_over_requesters_has_no_score_that_one_of_them_has_not() -> None:
    """Switzerland's test patients are all ill, so it has no AUROC; a dash is no failure, and a failure shows."""
    lines = [
        *(
            result_line("a", "north", seed, (0.5,)).model_copy(update={"test_auroc": (0.8 + 0.1 * seed,)})
            for seed in (0, 1)
        ),
        *(result_line("a", "switzerland", seed, (0.5,)).model_copy(update={"test_auroc": (None,)}) for seed in (0, 1)),
    ]
    summary = summarise_case(lines)
    north, switzerland, mean = summary.rows
    assert str(north.scores["auroc"]) == "0.8500 ± 0.0500"
    assert "auroc" not in switzerland.scores
    assert "auroc" not in mean.scores
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table_of(summary))
    assert "failed" not in captured.get()
    once = lines[2].model_copy(update={"test_auroc": (0.6,)})
    assert str(summarise_case([*lines[:2], once, lines[3]]).rows[-1].scores["auroc"]) == "0.7000"
    failed = result_line("a", "switzerland", 1, (), end="failed")
    assert str(summarise_case([*lines[:2], once, failed]).rows[-1].scores["auroc"]) == "failed"


def test_the_folder_gets_the_summary_and_the_curves(tmp_path: Path) -> None:
    moving = {"west": (1.0, 0.5, None), "east": (0.9, 0.8, 0.7)}
    lines = [
        result_line("erosion", "north", 0, (0.5, 0.6, 0.7), moving),
        result_line("erosion", "north", 1, (0.5, 0.6, 0.5), moving),
        result_line("still", "north", 0, (0.5, 0.6, 0.7), {"west": (1.0, 1.0, 1.0)}),
    ]
    summary = summarise_case(lines)
    write_summary(summary, lines, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "accuracy.svg", "summary.json", "weights_erosion.svg",
    ]  # fmt: skip
    assert json.loads((tmp_path / "summary.json").read_text())["rows"][0]["variant"] == "erosion"
    weights = (tmp_path / "weights_erosion.svg").read_text()
    assert ">west<" in weights
    assert ">east<" in weights
    assert ">still<" in (tmp_path / "accuracy.svg").read_text()
    console = Console(width=200, record=True)
    console.print(table_of(summary))
    assert "0.6000 ± 0.1000" in console.export_text()


def test_distances_are_drawn_over_rounds_or_over_the_requesters_views(tmp_path: Path) -> None:
    seen = {"distance": {"west": (1.0, 2.0), "east": (0.5, None)}, "requester_norm": (1.0, 2.0)}
    north = result_line("erosion", "north", 0, (0.5, 0.6)).model_copy(update=seen)
    write_summary(summarise_case([north]), [north], tmp_path)
    assert ">east<" in (tmp_path / "distances_erosion.svg").read_text()
    both = [north, north.model_copy(update={"requester": "west", "distance": {"north": (1.0, 2.0)}})]
    write_summary(summarise_case(both), both, tmp_path)
    assert ">west asks<" in (tmp_path / "distances_erosion.svg").read_text()


def test_the_weights_of_many_contributors_are_drawn_as_their_mean(tmp_path: Path) -> None:
    many = {f"site-{n}": (1.0, 1 - n / 20) for n in range(12)}
    lines = [result_line("erosion", "north", 0, (0.5, 0.6), many)]
    write_summary(summarise_case(lines), lines, tmp_path)
    text = (tmp_path / "weights_erosion.svg").read_text()
    assert ">mean of 12 contributors<" in text
    assert "site-3" not in text
