"""Sums that differ by one site, and what a server learns from who stays in a sum."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import moiety
from harness.attack.attacked_study import AttackedStudy, OpenedSum, Setting
from harness.attack.cli import QUESTIONS
from harness.attack.leak import (
    PARAMETERS,
    SITES,
    VICTIM,
    Asked,
    Falsehood,
    LeakLine,
    Measured,
    Question,
    cases,
    leak_line,
    leaked,
    learned,
    share_that_fails,
    updates_of,
)
from harness.attack.reconstruction import DifferencedLine, difference_error, differenced_line
from harness.simulate.case import read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES
from protocol.arithmetic.ring import to_signed
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc import sketch
from protocol.parameters import Needs

RNG = np.random.default_rng(2)
CASE = read_case(STUDIES / "breast_cancer.toml")


def run(batch: int, rate: float = 0.1, variant: str = "fedavg", least: int = 3) -> DifferencedLine:
    training = {"batch_size": batch, "batches": "shuffled", "server_learning_rate": rate}
    changes = {"training": training, "parameters": {"least_contributors": least}}
    setting = Setting("here", changes, least_isolation=0.0)
    return differenced_line(AttackedStudy(CASE, variant, 0, "city-hospital", setting))


def opened(number: int, weights: dict[str, float], updates: dict[str, np.ndarray]) -> OpenedSum:
    total = np.sum([weights[site] * updates[site] for site in weights], axis=0)
    truth = {site: updates[site].astype(np.float32) for site in weights}
    return OpenedSum(number, "requester", weights, total, truth)


def test_the_difference_of_two_sums_over_the_same_updates_is_the_site_that_is_gone() -> None:
    updates = {site: RNG.normal(size=20).astype(np.float32).astype(np.float64) for site in ("requester", "a", "b")}
    whole = opened(1, {"requester": 1.0, "a": 0.5, "b": 1.0}, updates)
    without = opened(2, {"requester": 1.0, "b": 1.0}, updates)
    assert difference_error([whole, without], "a") < 1e-6
    moved = {**updates, "b": updates["b"] + 0.5 * updates["a"]}
    assert difference_error([whole, opened(2, {"requester": 1.0, "b": 1.0}, moved)], "a") == pytest.approx(1.0)


def test_full_batches_at_nearly_the_same_model_give_the_update_away_and_isolation_says_so() -> None:
    line = run(1_000_000, rate=1e-4)
    assert line.difference < 5e-3
    assert line.predicted < 5e-3
    assert line.achieved <= line.difference


def test_small_fresh_batches_hide_it_and_isolation_says_that_too() -> None:
    line = run(8)
    assert line.predicted > 0.5
    assert line.difference > 1.0
    assert line.achieved == pytest.approx(line.average, rel=0.02)  # which needs no attack: these sites are alike


def test_a_study_without_a_second_sum_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="1 sums were opened, two are needed"):
        run(8, least=4)


# --- leak -------------------------------------------------------------------------------------------------------------

LENGTHS = (0.5, 0.6, 0.4, 0.5, 0.3, 0.7)


def test_as_many_cases_as_there_are_sequences_of_answers() -> None:
    for rounds, failures in itertools.product(range(1, 7), range(4)):
        sequences = sum(sum(answers) <= failures for answers in itertools.product((0, 1), repeat=rounds))
        assert cases(rounds, failures) == sequences


def test_the_share_that_fails_makes_all_sequences_equally_likely() -> None:
    chance = 1.0
    for left, failures, fails in ((6, 2, False), (5, 2, True), (4, 1, False), (3, 1, True), (2, 0, False)):
        share = share_that_fails(left, failures)
        chance *= share if fails else 1 - share
    assert chance == pytest.approx(1 / cases(6, 2) * cases(1, 0))


def measured(spec: RuleSpec, opens: Needs, seed: int = 7) -> Measured:
    return Measured(spec, opens, updates_of(seed, LENGTHS), bytes([seed]) * 32)


@pytest.mark.parametrize(
    ("spec", "opens"),
    [(RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS), (RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING)],
)
def test_an_honest_server_leaves_nobody_out(spec: RuleSpec, opens: Needs) -> None:
    judged = measured(spec, opens).judged(Falsehood(), 1)
    assert judged.measured.took_part == SITES[1:]
    assert judged.failed == ()


def test_a_raised_projection_fails_exactly_below_the_threshold() -> None:
    """The requester's verdict on all 40 projections is a comparison of <r, x>, which nobody ever computes."""
    round_ = measured(RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING)
    rows = sketch.projections(round_.challenge, PARAMETERS).astype(np.int64)
    projected = rows @ to_signed(round_.updates[VICTIM])
    verdicts = set()
    for place, threshold in enumerate(round_.own_thresholds()):
        judged = round_.judged(Falsehood(raised=place), 1)
        assert (VICTIM in judged.failed) == (projected[place] < threshold)
        verdicts.add(VICTIM in judged.failed)
        assert set(judged.failed) <= {VICTIM}
    assert verdicts == {True, False}


def test_what_is_added_moves_the_bound_of_one_site_alone() -> None:
    round_ = measured(RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS)
    squared, most = round_.length(VICTIM) ** 2, PARAMETERS.encoded_norm**2
    for threshold, out in ((squared * 0.999, True), (squared * 1.001, False)):
        judged = round_.judged(Falsehood(added=math.floor(most - threshold)), 1)
        assert judged.failed == ((VICTIM,) if out else ())


def test_the_clause_keeps_a_norm_to_as_many_bits_as_there_are_sequences_and_without_it_each_round_tells_one() -> None:
    asked = Asked(Question.NORM, rounds=8)
    by_two, by_any = (learned(asked, failures, 0) for failures in asked.plans)
    assert by_two.bits == pytest.approx(math.log2(cases(8, 2)), abs=0.001)
    assert (by_two.failed, by_two.caught) == (2, None)
    assert by_any.bits <= by_two.bits
    assert by_any.failed == 2
    without = leak_line(Asked(Question.NORM, clause=False, rounds=8), 9, 0)
    assert (without.bits, without.asked) == (pytest.approx(8.0, abs=0.001), 8)


def test_a_projections_bits_are_what_its_answers_had_as_chances() -> None:
    told = learned(Asked(Question.PROJECTION, rounds=5), 2, 3)
    assert 0 < told.bits < 10
    assert told.asked == 5
    assert learned(Asked(Question.PROJECTION, rounds=5), 2, 3) == told


def line(failures: int, bits: float, caught: int | None = None) -> LeakLine:
    return LeakLine(
        question=Question.GAP, clause=True, failures=failures, rounds=30, seed=int(bits), bits=bits,
        asked=30, failed=1, caught=caught, seconds=0.1, versions={},
    )  # fmt: skip


def test_over_seeds_the_better_plan_counts() -> None:
    found = leaked([line(2, 4.0), line(2, 6.0, 7), line(31, 9.0), line(31, 0.0)])
    assert (found.failures, found.seeds, found.caught, str(found)) == (2, 2, 1, "5.0 ± 1.4")


def test_the_command_prints_means_and_keeps_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "there" / "leak.jsonl"
    asked = ["attack", "leak", "--rounds", "4", "--seeds", "0-1", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        moiety.main([*asked, "--questions", "norm,gap"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "norm: 4.0 ± 0.0 bits about one site's update" in said
    assert "gap: 4.0 ± 0.0 bits" in said
    assert len({(one.question, one.failures, one.seed) for one in read_lines(out, LeakLine)}) == 2 * 2 * 2
    with pytest.raises(SystemExit):
        moiety.main([*asked, "--questions", "gap", "--json"])
    printed = [LeakLine.model_validate_json(text) for text in capsys.readouterr().out.splitlines()]
    assert [one.question for one in printed] == [Question.GAP] * 4
    with pytest.raises(SystemExit):
        moiety.main([*asked, "--questions", "everything"])
    assert "they are norm, projection, gap" in capsys.readouterr().err


def test_the_help_names_every_question() -> None:
    assert tuple(Question) == QUESTIONS
