"""Does it pay: the better of both, chosen with hindsight, and who is clearly above or below it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from harness.papers import does_it_pay
from harness.papers.charts import Dot, RatioPanel, ratios_chart
from harness.papers.page import Page
from harness.papers.tables.better_of_both import (
    beside_better,
    beside_rule,
    better_losses,
    losses,
    mean_beside_better,
    unfinished,
    with_rules_alone,
)
from harness.simulate.run_line import RunLine
from tests.unit.harness.papers.made import line


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


def test_the_better_of_both_is_chosen_for_each_requester_by_its_mean() -> None:
    lines = study()
    assert better_losses(lines, "a") == {0: 0.4, 1: 0.5}
    assert better_losses(lines, "b") == {0: 0.2, 1: 0.3}
    first, second = beside_better(lines, "mallows")
    assert (first.requester, first.better, first.worse) == ("a", True, False)
    assert (second.requester, second.better, second.worse) == ("b", False, True)
    assert first.difference.mean == pytest.approx(-0.095, abs=1e-12)
    assert first.difference.error == pytest.approx(0.005, abs=1e-12)
    alone = {one.requester: one.difference.mean for one in beside_rule(lines, "mallows")}
    assert alone == pytest.approx({"a": -0.295, "b": 0.205}, abs=1e-12)
    # the mean over requesters of every seed is one value: (-.10 + .20) / 2 and (-.09 + .21) / 2
    gap = mean_beside_better(lines, "mallows")
    assert gap is not None
    assert (gap.mean, gap.error) == pytest.approx((0.055, 0.005), abs=1e-12)


def test_without_fedavg_there_is_no_better_of_both() -> None:
    lines = [one for one in study() if one.variant != "fedavg"]
    assert better_losses(lines, "a") == {}
    assert beside_better(lines, "mallows") == ()
    assert mean_beside_better(lines, "mallows") is None


def test_a_rule_that_failed_is_never_the_better_one_and_shows() -> None:
    lines = [one for one in study() if (one.variant, one.requester, one.seed) != ("fedavg", "a", 0)]
    lines.append(lost("fedavg", "a", 0, end="failed"))
    assert math.isnan(losses(lines, "fedavg", "a")[0])
    assert better_losses(lines, "a") == {0: 0.6, 1: 0.7}
    assert not any(one.better or one.worse for one in beside_rule(lines, "fedavg") if one.requester == "a")


def test_the_rounds_before_a_finish_are_the_rule_alone_unless_that_has_run() -> None:
    finished = lost(
        "mallows_finished",
        "a",
        0,
        0.5,
        0.4,
        0.3,
        kind=("released", "released", "finished"),
        test_log_loss=(0.5, 0.4, 0.3),
        test_metrics={"f1": (0.1, 0.2, 0.3)},
    )
    both = with_rules_alone([finished])
    assert [(one.variant, one.test_loss[-1], one.test_log_loss[-1]) for one in both] == [
        ("mallows_finished", 0.3, 0.3),
        ("mallows", 0.4, 0.4),
    ]
    assert both[1].test_metrics == {"f1": (0.1, 0.2)}
    assert both[1].final_scores is None
    own = lost("mallows", "a", 0, 0.9)
    assert with_rules_alone([finished, own]) == (finished, own)
    failed = lost("mallows_finished", "a", 1, 0.5, end="failed")
    assert unfinished(failed).test_loss == (0.5,)


def test_the_page_counts_names_who_falls_short_and_says_what_was_not_done(tmp_path: Path) -> None:
    page = Page(tmp_path / "does_it_pay.md", "Does it pay to join?")
    does_it_pay.write(page, {"pays_heart_disease": study()}, None)
    page.write()
    text = page.path.read_text()
    assert "**Not done:** studies: Titanic by age, Titanic, two alike, breast cancer," in text
    assert "; rules: FedAvg by samples, Weight Erosion, Shrinkage, Mallows averaging, sums," in text
    assert "; seeds: heart disease, Local (2 of 20), heart disease, FedAvg (2 of 20), heart" in text
    assert "| **Mallows averaging** | 2 | 1 | 2 | 1 (50 %) | 1 (50 %) | 1 (50 %) | 1 (50 %) |" in text
    assert "| **Local** | 2 | 1 | 2 | 0 (0 %) | 1 (50 %) |  |  |" in text
    assert "| Mallows averaging | 2 | .405 | **+0.055 ± 0.005** | 1 / 0 / 1 | 1 / 0 / 1 |" in text
    assert "| *better of both* |  | .350 |" in text
    assert "- heart disease: Mallows averaging is clearly below Local for b (**+0.205 ± 0.005**)." in text
    assert "- heart disease: Mallows averaging is clearly below the better of both for b" in text
    assert (
        "- Mallows averaging (2 seeds) is clearly below training alone for 1 of 2 requesters (goal: none): **not"
        in text
    )
    assert (
        "- Mallows averaging (2 seeds) is clearly above it for 1 of 2 with few examples (goal: half): reached." in text
    )
    (few,) = re.findall(r"^\| 10 \| ([+-][.0-9]+) \|", text, flags=re.MULTILINE)
    (many,) = re.findall(r"^\| 1000 \| ([+-][.0-9]+) \|", text, flags=re.MULTILINE)
    assert float(few) > 0.1 > 0.02 > float(many)
    assert (tmp_path / "does_it_pay_ratios.svg").read_text().startswith("<svg")
    empty = Page(tmp_path / "none.md", "None")
    does_it_pay.write(empty, {}, None)
    empty.write()
    assert "**Not run yet.**" in empty.path.read_text()


def test_two_ways_of_averaging_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    lines = [
        *study(),
        *(lost(rule, "a", 2, loss) for rule, loss in (("local", 0.6), ("fedavg", 0.4), ("mallows", 0.1))),
        lost("mallows_sums", "a", 0, 0.32),
        lost("mallows_sums", "a", 1, 0.44),
        lost("mallows_sums", "b", 0, 0.30),
        lost("mallows_sums", "b", 1, 0.42),
    ]
    page = Page(tmp_path / "does_it_pay.md", "Does it pay to join?")
    does_it_pay.write(page, {"pays_heart_disease": lines}, None)
    page.write()
    text = page.path.read_text()
    assert "clearly better for 1 of 2 requesters, clearly worse for 1 (heart disease: a (+0.025))" in text
    assert "Clearly below the better of both are 1 by ratios and 1 by sums." in text
    assert "| **Mallows averaging, sums** | 2 | 1 | 2 |" in text


def test_ratios_beyond_the_axes_stand_at_their_edge_and_every_kind_is_in_the_legend() -> None:
    dots = (Dot(True, 0.5, 0.4, True, False), Dot(False, 100.0, 1.0, False, False), Dot(True, 2.0, 1.5, False, True))
    svg = ratios_chart([RatioPanel("a rule", dots), RatioPanel("another", dots[:1])])
    assert svg == ratios_chart([RatioPanel("a rule", dots), RatioPanel("another", dots[:1])])
    for text in ("a rule", "another", "clearly better", "not clear", "clearly worse", "better of both"):
        assert f">{text}<" in svg
