"""What a server reads from who stays in the sum: the bound on it, and that falsified operands ask what they should."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from harness.adversaries.falsifying.measured import PARAMETERS, SITES, VICTIM, Falsehood, Measured, updates_of
from harness.adversaries.falsifying.search import cases, most_bits, share_that_fails
from protocol.arithmetic.ring import to_signed
from protocol.mpc import range_check
from protocol.parameters import Needs
from protocol.wire.messages import RuleName, RuleSpec

LENGTHS = (0.5, 0.6, 0.4, 0.5, 0.3, 0.7)


def test_as_many_cases_as_there_are_sequences_of_answers() -> None:
    for rounds, failures in itertools.product(range(1, 7), range(4)):
        sequences = sum(sum(answers) <= failures for answers in itertools.product((0, 1), repeat=rounds))
        assert cases(rounds, failures) == sequences
    assert round(most_bits(30, 2), 2) == 8.86
    assert round(most_bits(100, 2), 1) == 12.3


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
    [
        (RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0), Needs.NORMS),
        (RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING),
    ],
)
def test_an_honest_server_leaves_nobody_out(spec: RuleSpec, opens: Needs) -> None:
    judged = measured(spec, opens).judged(Falsehood(), 1)
    assert judged.measured.took_part == SITES[1:]
    assert judged.failed == ()


def test_a_raised_projection_fails_exactly_below_the_threshold() -> None:
    """Of all 40 projections: the requester's verdict is a comparison of <r, x>, which nobody ever computes."""
    round_ = measured(RuleSpec(name=RuleName.FEDAVG), Needs.NOTHING)
    rows = range_check.projections(round_.challenge, PARAMETERS).astype(np.int64)
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
