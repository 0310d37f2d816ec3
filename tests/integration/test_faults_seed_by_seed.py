"""``moiety lab faults --servers``: what two hundred seeds draw breaks no promise; ``make soak`` runs ten thousand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from harness.faults.schedule import Level
from harness.faults.simulator import simulated

_CRITICAL = 50
_SEEDS = 25


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Accidents fill logs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.uncounted
@pytest.mark.parametrize("first", range(200, 400, _SEEDS))
def test_promises_hold_after_what_seeds_draw(first: int) -> None:
    assert {
        seed: broken for seed in range(first, first + _SEEDS) if (broken := simulated(seed, Level.SERVERS).failed)
    } == {}
