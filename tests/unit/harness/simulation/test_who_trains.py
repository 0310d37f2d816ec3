"""A simulation trains only the sites whose update is in the sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness.engine import updates
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.command import CaseBar

CASE = """
name = "try"
rounds = 12
[case]
data = "breast_cancer"
[case.policy]
least_contributors = 1
largest_share = 1.0
[model]
kind = "linear"
inputs = [30]
[training]
server_learning_rate = 0.3
[parameters]
clip_norm = 4.0
least_contributors = 1
[[variant]]
name = "run"
rule = {rule}
"""
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
    run_case(parse_case(CASE.format(rule='{ name = "local" }'), "case.toml"), CaseOptions(tmp_path))
    assert trained == [("city-hospital", number) for number in range(1, 13)]


def test_a_site_without_weight_is_not_trained(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    rule = '{ name = "weight_erosion", distance_penalty = 0.15, size_penalty = 0.0 }'
    (line,) = run_case(parse_case(CASE.format(rule=rule), "case.toml"), CaseOptions(tmp_path))
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
