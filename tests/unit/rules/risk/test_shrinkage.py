"""Shrinkage: one weight for all, by how far the requester lies from the mean against its own noise."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolViolation
from protocol.rules.interface import Measured, RuleState, SiteFacts
from protocol.rules.shrinkage import Shrinkage

RULE = Shrinkage(1024)
NAMES = ("c1", "c2", "c3")


def state_after(*from_mean: float, variance: float = 1.0) -> RuleState:
    state = RULE.admit(RULE.init(()), tuple(SiteFacts(name=name, samples=8) for name in NAMES))
    for number, distance in enumerate(from_mean, 1):
        state = RULE.apply(
            state,
            Measured(round=number, requester_norm=1.0, variance=variance, from_mean=distance, took_part=NAMES),
        )
    return state


@pytest.mark.parametrize(
    ("from_mean", "towards"), [((), 1.0), ((0.5,), 1.0), ((2.0,), 0.25), ((1.0, 3.0), 0.2), ((1e6,), 0.0)]
)
def test_the_step_goes_so_far_towards_the_mean(from_mean: tuple[float, ...], towards: float) -> None:
    """(1 - a) g_0 + a gbar: a / 4 for each of the others."""
    weights = [w.numerator for w in RULE.numerators(state_after(*from_mean))]
    total = RULE.own_numerator(state_after(*from_mean)) + sum(weights)
    assert [w / total for w in weights] == pytest.approx([towards / 4] * 3, abs=1.1 / 1024)
    assert min(weights) >= 1


def test_without_noise_nothing_is_learned_and_what_is_missing_is_named() -> None:
    assert state_after(2.0, variance=0.0).means == ()
    with pytest.raises(ProtocolViolation, match="the requester's own noise, or the mean, is unknown"):
        RULE.apply(state_after(), Measured(round=1, requester_norm=1.0, variance=1.0, took_part=NAMES))
