"""Every attack that can be run by its name."""

from __future__ import annotations

from functools import cache

from harness.adversaries.catalogue.altered_sums import altered_sums
from harness.adversaries.catalogue.attack import Attack
from harness.adversaries.catalogue.curious import curious_servers
from harness.adversaries.catalogue.falsified import falsified_measurements
from harness.adversaries.catalogue.lists import hostile_lists
from harness.adversaries.catalogue.messages import hostile_messages
from harness.adversaries.catalogue.models import crafted_models
from harness.adversaries.catalogue.outside import outside_attacks
from harness.adversaries.catalogue.poisoning import poisonings
from harness.adversaries.catalogue.queries import chosen_queries
from harness.adversaries.catalogue.sums import subtractions
from harness.adversaries.catalogue.vectors import vector_attacks
from protocol.errors import ConfigurationError


@cache
def catalogue() -> dict[str, Attack]:
    """Name -> attack, the families one after the other. Raises: ConfigurationError, when two have one name"""
    families = (
        vector_attacks(),
        hostile_messages(),
        outside_attacks(),
        hostile_lists(),
        subtractions(),
        crafted_models(),
        chosen_queries(),
        curious_servers(),
        falsified_measurements(),
        altered_sums(),
        poisonings(),
    )
    found: dict[str, Attack] = {}
    for attack in (attack for family in families for attack in family):
        if attack.name in found:
            raise ConfigurationError(f"two attacks are called {attack.name!r}; name one of them otherwise")
        found[attack.name] = attack
    return found
