"""Rules that other packages bring: entry points of group ``moiety.rules``, called ``PACKAGE:RULE``.

The package's code runs with the rights of whoever starts the simulation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from typing import Final

from protocol.errors import ConfigurationError

GROUP: Final = "moiety.rules"
_NAME: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):([a-z0-9_]+)")


@dataclass(frozen=True)
class InstalledRule:
    """A package's entry point; nothing of the package has been imported yet."""

    package: str
    version: str
    entry: EntryPoint

    def load(self) -> object:
        """What the entry point leads to. Raises: ConfigurationError when the package cannot be imported"""
        try:
            return self.entry.load()
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ConfigurationError(
                f"rule '{self.package}:{self.entry.name}' of {self.package} {self.version} cannot be loaded from "
                f"{self.entry.value}: {type(error).__name__}: {error}"
            ) from error


def installed_rule(name: str) -> InstalledRule:
    """The rule ``PACKAGE:RULE``. Raises: ConfigurationError that says what to install, or which rules there are"""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigurationError(f"rule {name!r}: a package's rule is called PACKAGE:RULE, such as 'my-rules:median'")
    package, rule = parts[1], parts[2]
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise ConfigurationError(
            f"rule {name!r} is from a package that is not installed; install it with: pip install {package}"
        ) from None
    offered = {entry.name: entry for entry in found.entry_points.select(group=GROUP)}
    if rule not in offered:
        raise ConfigurationError(
            f"rule {name!r}: {package} {found.version} offers no such rule; it offers {_listed(offered, found)}"
        )
    return InstalledRule(package, found.version, offered[rule])


def _listed(offered: dict[str, EntryPoint], found: Distribution) -> str:
    return ", ".join(sorted(offered)) or f"none at all: {found.metadata['Name']} has no entry point of group {GROUP!r}"
