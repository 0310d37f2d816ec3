"""A requester asks for sums whose difference is one site's update: what it knows in the end, without and with a limit.

Each attack works where sites ask for nothing, which is how the policy was before; with the default limit the requester
is left with what one sum says.
"""

from __future__ import annotations

import pytest

from harness.adversaries.memory_attacks import ATTACKS, FOUR, REQUESTER, Federation, MemoryAttack, start
from harness.adversaries.reconstruction import Prior, Reconstruction
from protocol.policy import SitePolicy

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
