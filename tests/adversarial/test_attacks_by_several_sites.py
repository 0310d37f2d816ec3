"""Attacks by several sites together: each holds where promised, and succeeds without its defence."""

from __future__ import annotations

from harness.adversaries.attack import Attack
from tests.adversarial.attacks import attacks_by, require_as_promised


@attacks_by("several_sites")
def test_attack(attack: Attack) -> None:
    require_as_promised(attack)
