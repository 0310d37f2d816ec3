"""A requester asks for sums whose difference is one site's update: what it knows in the end, without and with a limit.

Each attack works where sites ask for nothing, which is how the policy was before; with the default limit the requester
is left with what one sum says.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.adversaries.memory_attacks import (
    ATTACKS,
    FEATURES,
    FOUR,
    PARTS,
    REQUESTER,
    Claim,
    Federation,
    MemoryAttack,
    start,
)
from harness.adversaries.reconstruction import Prior, Reconstruction
from protocol.policy.site_policy import SitePolicy

LIMIT = SitePolicy().least_isolation
MOVES = {"rate 0.001": 0.002, "rate 0.1": 0.15, "rate 0.5": 0.5, "slow lists": 0.1}
"""Where the model moves between the sums the attack is that good, otherwise it is exact."""
ONE_SUM = 0.4
"""What the limit leaves: a little below 0.5 where the sites' updates are not as long as each other."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_without_a_limit_an_update_is_known_and_with_it_no_more_than_one_sum_says(attack: MemoryAttack) -> None:
    without = attack.error(0.0)
    assert without < MOVES.get(attack.name, 1e-4)
    assert attack.error(LIMIT) > max(ONE_SUM, without)


def test_repeating_the_same_sum_is_never_refused() -> None:
    federation = Federation(LIMIT)
    for _ in range(5):
        assert federation.ask(FOUR, start()) is not None
    errors = Reconstruction((REQUESTER,), Prior.TRUE).errors(federation.opened)
    assert min(error for one in errors.values() for error in one if error is not None) > ONE_SUM


def between_models(federation: Federation) -> float | None:
    """Three studies of which no site sees all; the third's model is a combination of two models of the others.

    Updates of linear regressions over all examples are combined as their models are. -> relative error for site one
    """
    near, far = start(), np.linspace(-1, 1, FEATURES)
    third = 2 * far - near
    combined = []
    for number, listed in enumerate(PARTS[:2]):
        sums = [federation.ask(listed, model, Claim(study=str(number)), told=listed) for model in (near, far)]
        combined.append(None if sums[0] is None or sums[1] is None else 2 * sums[1] - sums[0])
    last = federation.ask(PARTS[2], third, Claim(study="2"), told=PARTS[2])
    if last is None or combined[0] is None or combined[1] is None:
        return None
    truth = federation.update("one", third)
    found = combined[0] + combined[1] - last - federation.update(REQUESTER, third)
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def test_a_model_between_those_of_other_studies_is_no_new_one() -> None:
    without = between_models(Federation(0.0))
    assert without is not None
    assert without < 1e-10
    assert between_models(Federation(LIMIT)) is None


def test_another_cohort_is_welcome_where_updates_are_new() -> None:
    federation = Federation(LIMIT)
    assert federation.ask(PARTS[0], start(), told=PARTS[0]) is not None
    assert federation.ask(PARTS[2], np.linspace(-3, 3, FEATURES), Claim(study="second"), told=PARTS[2]) is not None
