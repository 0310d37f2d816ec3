"""``moiety attack reconstruction`` and the run behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import moiety
from harness.adversaries import cli as attack_cli
from harness.adversaries.attack_line import AttackLine
from harness.adversaries.attacked_study import AS_IT_IS, AttackedRun, Setting
from harness.adversaries.differencing.lines import DifferencedLine
from harness.adversaries.inverting.lines import InversionLine
from harness.adversaries.reconstruction import Prior
from harness.simulate.case import read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES

REQUESTER = "city-hospital"
CASE = read_case(STUDIES / "breast_cancer.toml")


def run(setting: Setting = AS_IT_IS, rounds: int = 3, variant: str = "weight_erosion") -> AttackLine:
    return AttackedRun(CASE, variant, setting, REQUESTER, 0, rounds=rounds).line()


def test_a_line_says_who_tried_what_and_how_far_off_it_was() -> None:
    line = run()
    assert line.rounds == (1, 2, 3)
    contributors = tuple(line.weight)
    assert {one.party for one in line.attacks} == {
        (REQUESTER,),
        *((site,) for site in contributors),
        *((REQUESTER, site) for site in contributors),
    }
    found = line.by((REQUESTER,), Prior.TRUE)
    assert found is not None
    assert set(found.errors) == set(contributors)
    assert all(0 < error < 2 for errors in found.errors.values() for error in errors if error is not None)
    assert line.by(("nobody",), Prior.TRUE) is None


def test_a_setting_changes_the_study_and_noise_hides_the_updates_that_are_measured() -> None:
    plain, noisy = run(), run(Setting("noise", noise=1.0))
    full = run(Setting("full", {"training": {"batch_size": 1000}, "rounds": 2}))
    assert full.rounds == (1, 2)
    assert full.attacks != plain.attacks
    site = next(iter(plain.weight))
    least = [one.least(site) for line in (plain, noisy) if (one := line.by((REQUESTER,), Prior.AVERAGE))]
    assert least[0] is not None
    assert least[1] is not None
    assert least[0] < least[1]


def test_a_study_without_sums_has_nothing_to_attack() -> None:
    line = run(variant="local")
    assert (line.rounds, line.attacks, line.lists) == ((), (), 0)


def test_class_counts_and_weights_of_ones_own_are_recorded() -> None:
    """WFedAvg sums class counts first, which open no update, and then by weights that each site gives itself."""
    tables = {"rule": {"name": "wfedavg"}, "parameters": {"weight_grid": 2}}
    variant = replace(CASE.variant("fedavg"), tables={**CASE.variant("fedavg").tables, "rule": {}})
    case = replace(CASE, variants=(variant,))
    line = AttackedRun(case, "fedavg", Setting("wfedavg", {**tables, "rounds": 2}, 0.1), REQUESTER, 0).line()
    assert line.rounds == (2, 3)
    assert all(0 < weight <= 1 for weights in line.weight.values() for weight in weights if weight is not None)
    assert len({weights[0] for weights in line.weight.values()}) > 1


def test_the_command_prints_a_table_and_keeps_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = STUDIES / "breast_cancer.toml", tmp_path / "there" / "attacks.jsonl"
    attack("reconstruction", study, "--rounds", 2, "--out", out)
    assert "2 sums over" in capsys.readouterr().out
    attack("reconstruction", study, "--rounds", 2, "--seeds", 1, "--only", "fedavg,local", "--out", out, "--json")
    printed = [AttackLine.model_validate_json(text) for text in capsys.readouterr().out.splitlines()]
    kept = read_lines(out, AttackLine)
    assert [line.variant for line in kept] == ["weight_erosion", "fedavg", "local"]
    assert list(kept[1:]) == printed
    assert [line.seed for line in kept] == [0, 1, 1]


def test_a_missing_error_leaves_its_cell_empty() -> None:
    line = run(variant="local")
    assert attack_cli.cell(line, Prior.OWN, "county-hospital") == ""


def test_what_the_privacy_page_measures_can_be_run_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = STUDIES / "breast_cancer.toml", tmp_path / "there" / "lines.jsonl"
    attack("inversion", "breast-linear", "--sites", 1, "--batches", 1, "--out", out)
    assert "analytic 1.000 (1.000)" in capsys.readouterr().out
    assert read_lines(out, InversionLine)[0].key == ("breast-linear", 1, 1, 0)
    attack("differencing", study, "--only", "fedavg", "--least", 3, "--json")
    assert DifferencedLine.model_validate_json(capsys.readouterr().out).study == "breast-cancer"
    attack("membership", study, "--only", "fedavg", "--rounds", 1)
    assert "accuracy on members" in capsys.readouterr().out


def test_an_unknown_target_is_refused_with_the_names_of_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["attack", "inversion", "nothing"])
    assert ended.value.code
    assert "breast-linear" in capsys.readouterr().err


def attack(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["attack", *map(str, arguments)])
    assert not ended.value.code
