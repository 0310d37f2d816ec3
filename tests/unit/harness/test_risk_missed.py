"""What the estimate of risk misses in one drawn round."""

from __future__ import annotations

import pytest

from harness.papers.scores import SquaredErrors, squared_errors


def test_training_alone_and_plain_averaging_are_what_they_are_in_closed_form() -> None:
    """v_0 alone; (v_0 + 3 v_0) / 16 and three biases that point anywhere, 3 b / 16, averaged."""
    for bias in (0.0, 4.0):
        found = squared_errors(200, bias, draws=300)
        # a mean of 300 squared lengths over 200 directions has a standard error of sqrt(2 / 200 / 300) = .006
        assert found.alone == pytest.approx(1, abs=0.025)
        assert found.averaged == pytest.approx((4 + 3 * bias) / 16, rel=0.06)


def test_with_many_parameters_next_to_nothing_is_missed_and_with_few_it_is() -> None:
    many, few = (squared_errors(parameters, 0.0, draws=300).missed for parameters in (1000, 10))
    assert 0 <= many < 0.02
    assert 0.1 < few < 0.25
    assert squared_errors(1000, 4.0, draws=100).missed < -0.25


def test_the_rule_is_never_worse_than_training_alone_on_average() -> None:
    for bias in (0.0, 1.0, 4.0, 16.0):
        found = squared_errors(10, bias, draws=300)
        assert found.mallows < found.alone


def test_a_smaller_bias_factor_misses_less_and_the_seed_decides() -> None:
    careful, keen = (squared_errors(10, 0.0, bias_factor=factor, draws=200) for factor in (2.0, 1.0))
    assert keen.missed < careful.missed
    assert squared_errors(10, 0.0, draws=200) == careful
    assert SquaredErrors(0.5, 1.0, 0.75).missed == -0.25
