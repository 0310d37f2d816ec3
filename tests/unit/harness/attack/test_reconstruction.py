"""Estimating updates from sums and lists: what equations give away and what they cannot, and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import moiety
from harness.attack.attacked_study import AS_IT_IS, AttackedStudy, OpenedSum, Setting
from harness.attack.inversion import InversionLine
from harness.attack.reconstruction import (
    AttackLine,
    DifferencedLine,
    Prior,
    attacked_line,
    equations_of,
    gram,
    reconstruction_errors,
)
from harness.simulate.case import read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES
from tests.kit.present import present

SITES = ("one", "two", "three")
ROUNDS, DIMENSION = 16, 12


def moving(seed: int, step: float) -> np.ndarray:
    """Updates that drift by ``step`` of their length from round to round, float32[ROUNDS, DIMENSION]."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(ROUNDS, DIMENSION)) * step
    steps[0] = random.normal(size=DIMENSION)
    return np.cumsum(steps, axis=0).astype(np.float32)


def study(step: float, weights: np.ndarray, alike: bool = False) -> list[OpenedSum]:
    """Sums of a requester and three sites, float64[DIMENSION]; ``weights`` float64[ROUNDS, 3], 0 keeps a site out."""
    updates = {name: moving(0 if alike else place, step) for place, name in enumerate(("asks", *SITES))}
    sums = []
    for row in range(ROUNDS):
        used = {"asks": 1.0} | {name: float(w) for name, w in zip(SITES, weights[row], strict=True) if w}
        total = sum(w * updates[name][row].astype(np.float64) for name, w in used.items())
        sums.append(OpenedSum(row + 1, "asks", used, np.asarray(total), {name: updates[name][row] for name in used}))
    return sums


def changing() -> np.ndarray:
    return np.random.default_rng(7).integers(1, 33, (ROUNDS, 3)) / 32


def worst(errors: dict[str, tuple[float | None, ...]]) -> float:
    return max(error for one in errors.values() for error in one if error is not None)


@pytest.mark.parametrize("prior", [Prior.OWN, Prior.FITTED, Prior.TRUE])
def test_lists_that_change_over_updates_that_hardly_move_give_every_update_away(prior: Prior) -> None:
    assert worst(reconstruction_errors(study(1e-3, changing()), ("asks",), prior)) < 0.02


def test_a_listed_site_can_do_what_the_requester_can_and_has_the_requesters_updates_too() -> None:
    errors = reconstruction_errors(study(1e-3, changing()), ("two",), Prior.TRUE)
    assert set(errors) == {"asks", "one", "three"}
    assert worst(errors) < 0.02


def test_with_a_list_that_stays_nobody_knows_more_than_the_average() -> None:
    sums = study(0.1, np.ones((ROUNDS, 3)))
    average = reconstruction_errors(sums, ("asks",), Prior.AVERAGE)
    for prior in (Prior.OWN, Prior.FITTED):
        errors = reconstruction_errors(sums, ("asks",), prior)
        for site in SITES:
            assert errors[site] == pytest.approx(average[site], rel=0.05)


def test_updates_that_are_drawn_afresh_are_not_found() -> None:
    sums = study(1.0, changing())
    fresh = [
        OpenedSum(one.round, one.requester, one.weights, np.asarray(total), updates)
        for one in sums
        for updates in [
            {
                name: np.random.default_rng([one.round, place]).normal(size=DIMENSION).astype(np.float32)
                for place, name in enumerate(one.updates)
            }
        ]
        for total in [sum(one.weights[name] * update.astype(np.float64) for name, update in updates.items())]
    ]
    errors = reconstruction_errors(fresh, ("asks",), Prior.FITTED)
    assert all(np.median(np.array(errors[site])) > 0.4 for site in SITES)


def test_two_who_collude_leave_the_third_nothing_when_it_is_the_last_one() -> None:
    errors = reconstruction_errors(study(0.1, changing()), ("asks", "one", "two"), Prior.AVERAGE)
    assert worst(errors) < 1e-5


def test_a_round_without_a_site_has_no_error_for_it_and_a_colluder_who_was_away_takes_nothing_out() -> None:
    weights = changing()
    weights[3, 0] = 0.0
    sums = study(0.01, weights)
    assert reconstruction_errors(sums, ("asks",), Prior.OWN)["one"][3] is None
    equations = equations_of(sums, ("asks", "one"))
    rest = sums[3].total - sums[3].updates["asks"]
    np.testing.assert_allclose(equations.sums[3], rest, atol=1e-6)
    assert gram(sums, "one")[3, 3] == 0


def test_where_all_sites_send_the_same_the_average_is_it() -> None:
    sums = study(0.1, changing(), alike=True)
    assert worst(reconstruction_errors(sums, ("asks",), Prior.AVERAGE)) < 1e-5


REQUESTER = "city-hospital"
CASE = read_case(STUDIES / "breast_cancer.toml")


def run(setting: Setting = AS_IT_IS, rounds: int = 3, variant: str = "weight_erosion") -> AttackLine:
    return attacked_line(AttackedStudy(CASE, variant, 0, REQUESTER, setting, rounds=rounds))


def test_a_line_says_who_tried_what_and_how_far_off_it_was() -> None:
    line = run()
    assert line.rounds == (1, 2, 3)
    contributors = tuple(line.weight)
    assert {one.party for one in line.attacks} == {
        (REQUESTER,),
        *((site,) for site in contributors),
        *((REQUESTER, site) for site in contributors),
    }
    found = present(line.by((REQUESTER,), Prior.TRUE))
    assert set(found.errors) == set(contributors)
    assert all(0 < error < 2 for errors in found.errors.values() for error in errors if error is not None)
    assert line.by(("nobody",), Prior.TRUE) is None


def test_a_setting_changes_the_study() -> None:
    full = run(Setting("full", {"training": {"batch_size": 1000}, "rounds": 2}))
    assert full.rounds == (1, 2)
    assert full.attacks != run().attacks


def test_a_study_without_sums_has_nothing_to_attack() -> None:
    line = run(variant="local")
    assert (line.rounds, line.attacks, line.lists) == ((), (), 0)


def test_class_counts_and_weights_of_ones_own_are_recorded() -> None:
    """WFedAvg sums class counts first, which open no update, and then by weights that each site gives itself."""
    tables = {"rule": {"name": "wfedavg"}, "parameters": {"weight_grid": 2}}
    variant = replace(CASE.variant("fedavg"), tables={**CASE.variant("fedavg").tables, "rule": {}})
    case = replace(CASE, variants=(variant,))
    setting = Setting("wfedavg", {**tables, "rounds": 2}, least_isolation=0.0)
    line = attacked_line(AttackedStudy(case, "fedavg", 0, REQUESTER, setting))
    assert line.rounds == (2, 3)
    assert all(0 < weight <= 1 for weights in line.weight.values() for weight in weights if weight is not None)
    assert len({weights[0] for weights in line.weight.values()}) > 1


def test_the_command_prints_a_table_and_keeps_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = STUDIES / "breast_cancer.toml", tmp_path / "there" / "attacks.jsonl"
    attack("reconstruction", study, "--rounds", 2, "--out", out)
    assert "2 sums over" in capsys.readouterr().out
    attack("reconstruction", study, "--rounds", 1, "--only", "local")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["county-hospital"] in rows, "without sums there are no errors"
    attack("reconstruction", study, "--rounds", 2, "--seeds", 1, "--only", "fedavg,local", "--out", out, "--json")
    printed = [AttackLine.model_validate_json(text) for text in capsys.readouterr().out.splitlines()]
    kept = read_lines(out, AttackLine)
    assert [line.variant for line in kept] == ["weight_erosion", "fedavg", "local"]
    assert list(kept[1:]) == printed
    assert [line.seed for line in kept] == [0, 1, 1]


def test_what_the_privacy_page_measures_can_be_run_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = STUDIES / "breast_cancer.toml", tmp_path / "there" / "lines.jsonl"
    attack("inversion", "breast-linear", "--sites", 1, "--batches", 1, "--out", out)
    assert "analytic 1.000 (1.000)" in capsys.readouterr().out
    assert read_lines(out, InversionLine)[0].target == "breast-linear"
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
