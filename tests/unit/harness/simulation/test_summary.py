"""What several runs say together: means and standard errors over seeds, curves, weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from harness.simulate.run_line import RunLine
from harness.simulate.summary import Figure, summarise_case, table_of, write_summary
from tests.unit.harness.papers.made import line as made_line


def line(
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
        line("a", "north", 0, (0.5, 0.9, 0.8)),
        line("a", "north", 1, (0.5, 0.6, 0.6)),
        line("a", "south", 0, (0.4, 0.4)),
        line("a", "south", 1, (0.2, 0.2)),
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
    one, failed = summarise_case([line("a", "north", 0, (0.5,)), line("b", "north", 0, (), end="failed")]).rows
    assert (one.last_round.mean, one.last_round.standard_error) == (0.5, None)
    assert str(one.last_round) == "0.5000"
    assert failed.last_round == Figure(mean=None, standard_error=None)
    assert (str(failed.last_round), failed.ends) == ("failed", {"failed": 1})
    assert math.isnan(line("b", "north", 0, ()).last_accuracy)


def test_a_mean_over_requesters_has_no_score_that_one_of_them_has_not() -> None:
    """Switzerland's test patients are all ill, so it has no AUROC; a dash is no failure, and a failure shows."""
    lines = [
        *(line("a", "north", seed, (0.5,)).model_copy(update={"test_auroc": (0.8 + 0.1 * seed,)}) for seed in (0, 1)),
        *(line("a", "switzerland", seed, (0.5,)).model_copy(update={"test_auroc": (None,)}) for seed in (0, 1)),
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
    failed = line("a", "switzerland", 1, (), end="failed")
    assert str(summarise_case([*lines[:2], once, failed]).rows[-1].scores["auroc"]) == "failed"


def test_the_folder_gets_the_summary_and_the_curves(tmp_path: Path) -> None:
    moving = {"west": (1.0, 0.5, None), "east": (0.9, 0.8, 0.7)}
    lines = [
        line("erosion", "north", 0, (0.5, 0.6, 0.7), moving),
        line("erosion", "north", 1, (0.5, 0.6, 0.5), moving),
        line("still", "north", 0, (0.5, 0.6, 0.7), {"west": (1.0, 1.0, 1.0)}),
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
    north = line("erosion", "north", 0, (0.5, 0.6)).model_copy(update=seen)
    write_summary(summarise_case([north]), [north], tmp_path)
    assert ">east<" in (tmp_path / "distances_erosion.svg").read_text()
    both = [north, north.model_copy(update={"requester": "west", "distance": {"north": (1.0, 2.0)}})]
    write_summary(summarise_case(both), both, tmp_path)
    assert ">west asks<" in (tmp_path / "distances_erosion.svg").read_text()


def test_rewards_are_rounds_and_weights_in_released_sums(tmp_path: Path) -> None:
    given = {
        "kind": ("released", "skipped", "released", "alone"),
        "took_part": (("west", "east"), ("west",), ("west",), ()),
        "weight": {"west": (1.0, 1.0, 0.5, None), "east": (1.0, 1.0, 0.25, None)},
    }
    first = line("erosion", "north", 0, (0.5,) * 4).model_copy(update=given)
    second = first.model_copy(update={"seed": 1, "took_part": (("west",), (), ("west", "east"), ())})
    found = {one.site: (one.rounds, one.weights) for one in summarise_case([first, second]).rewards}
    assert found == {"north": (2, 2), "west": (2, 1.5), "east": (1, (1 + 0.25) / 2)}
    secret = [one.model_copy(update={"rule": "wfedavg"}) for one in (first, second)]
    assert {one.weights for one in summarise_case(secret).rewards} == {None}
    baseline = [one.model_copy(update={"rule": "ditto", "weight": {}}) for one in (first, second)]
    alike = {one.site: (one.rounds, one.weights) for one in summarise_case(baseline).rewards}
    assert alike == {"north": (2, 2), "west": (2, 2), "east": (1, 1)}
    alone = first.model_copy(update={"kind": ("alone",) * 4})
    assert summarise_case([alone]).rewards == ()


def test_the_weights_of_many_contributors_are_drawn_as_their_mean(tmp_path: Path) -> None:
    many = {f"site-{n}": (1.0, 1 - n / 20) for n in range(12)}
    lines = [line("erosion", "north", 0, (0.5, 0.6), many)]
    write_summary(summarise_case(lines), lines, tmp_path)
    text = (tmp_path / "weights_erosion.svg").read_text()
    assert ">mean of 12 contributors<" in text
    assert "site-3" not in text
