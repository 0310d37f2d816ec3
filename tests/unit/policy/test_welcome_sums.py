"""Sums that sites agree to however well they remember: the same again, and another cohort where updates are new.

What they refuse are the attacks ``sums-...``.
"""

from __future__ import annotations

import numpy as np

from harness.attack.memory_attacks import FEATURES, FOUR, PARTS, REQUESTER, Claim, Federation, start
from harness.attack.reconstruction import Prior, Reconstruction
from protocol.policy.site_policy import SitePolicy

LIMIT = SitePolicy().least_isolation
ONE_SUM = 0.4
"""What one sum leaves of an update."""


def test_repeating_the_same_sum_is_never_refused() -> None:
    federation = Federation(LIMIT)
    for _ in range(5):
        assert federation.ask(FOUR, start()) is not None
    errors = Reconstruction((REQUESTER,), Prior.TRUE).errors(federation.opened)
    assert min(error for one in errors.values() for error in one if error is not None) > ONE_SUM


def test_another_cohort_is_welcome_where_updates_are_new() -> None:
    federation = Federation(LIMIT)
    assert federation.ask(PARTS[0], start(), told=PARTS[0]) is not None
    assert federation.ask(PARTS[2], np.linspace(-3, 3, FEATURES), Claim(study="second"), told=PARTS[2]) is not None
