"""The active set's ways through a programme: cuts that replace others, contradict each other, or never end."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import ProtocolViolation
from protocol.rules import risk
from protocol.rules.risk import Cut, MostViolated, Reals, minimiser

G, A = np.eye(2), np.zeros(2)
FIRST = np.array([1.0, 0.0])


def one_after_the_other(*cuts: Cut) -> MostViolated:
    """The first cut that x violates, in this order."""
    return lambda x: next((cut for cut in cuts if cut.lacks(x) > 1e-9), None)


def least(*cuts: Cut) -> Reals:
    return minimiser(G, A, one_after_the_other(*cuts))


def test_a_stricter_cut_takes_the_place_of_one_along_the_same_normal() -> None:
    np.testing.assert_allclose(least(Cut(FIRST, 1.0), Cut(FIRST, 2.0)), [2.0, 0.0], atol=1e-12)


def test_cuts_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ProtocolViolation, match="constraints contradict each other; check the policy"):
        least(Cut(FIRST, 1.0), Cut(-FIRST, 0.0))


def test_a_search_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(risk, "_MOST_STEPS", 1)
    with pytest.raises(ProtocolViolation, match="no optimal weights after 1 steps"):
        least(Cut(FIRST, 1.0))


def test_a_cut_that_others_do_not_make_room_for_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(x: Reals) -> Cut:
        if x[0] < 0.5:
            return Cut(FIRST, 1.0)
        monkeypatch.setattr(risk, "_MOST_STEPS", 1)
        return Cut(FIRST, 2.0)

    with pytest.raises(ProtocolViolation, match="constraints contradict each other"):
        minimiser(G, A, violated)
