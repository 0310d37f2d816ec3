"""A variant's rule from another package: plain runs only, with FedAvg in the study in its place.

Servers and sites know the rules of the protocol alone, and so does a study. What a package's rule does happens at the
requester: the sum over the sites, and how it is applied, are FedAvg's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from host.rule_packages import installed_rule
from protocol.errors import ConfigurationError
from protocol.rules.interface import Rule
from protocol.rules.packaged import SEPARATOR, packaged_rule_for
from protocol.wire.messages import RuleName, Study

STAND_IN: Final = {"name": RuleName.FEDAVG.value}


@dataclass(frozen=True)
class ChosenRule:
    """The rule's name and its options as they were written."""

    name: str
    options: Mapping[str, Any]

    @property
    def package(self) -> tuple[str, str]:
        """Its name and version. Raises: ConfigurationError"""
        found = installed_rule(self.name)
        return found.package, found.version

    def rule(self, batch_size: int, grid: int) -> Rule:
        """The rule itself. Raises: ConfigurationError for options that it does not take"""
        offered = installed_rule(self.name).load()
        return packaged_rule_for(self.name, offered, self.options, batch_size=batch_size, grid=grid)

    def rule_of(self, study: Study) -> Rule:
        """The rule with the study's numbers. Raises: ConfigurationError"""
        return self.rule(study.training.batch_size, study.parameters.weight_grid)


def chosen_rule(tables: Mapping[str, Any]) -> ChosenRule | None:
    """The package's rule that a study's tables name, None where they name one of the protocol's."""
    written = tables.get("rule")
    if not isinstance(written, Mapping) or SEPARATOR not in str(written.get("name", "")):
        return None
    return ChosenRule(str(written["name"]), {key: value for key, value in written.items() if key != "name"})


def without_package(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The same tables with a rule that studies know."""
    return {**tables, "rule": STAND_IN} if chosen_rule(tables) else dict(tables)


def refuse_package(tables: Mapping[str, Any], source: str) -> None:
    """ConfigurationError where a package's rule is named and only the protocol's can be run."""
    chosen = chosen_rule(tables)
    if chosen is not None:
        raise ConfigurationError(
            f"{source}: rule {chosen.name!r} is from a package, and such rules run in plain runs of cases only: "
            f"give the file a [case], or take one of {', '.join(name.value for name in RuleName)}"
        )
