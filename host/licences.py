"""List the packages of an installation of Moiety and their licences, from the packages' own metadata."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Annotated, Any, Final

import typer

_ROOT: Final = "moiety"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CLASSIFIER: Final = "License :: OSI Approved :: "
_LONGEST_NAME: Final = 80
UNKNOWN: Final = "not said by the package"


@dataclass(frozen=True)
class Package:
    """``licence`` is an SPDX expression where the package gives one, else its words, in one line."""

    name: str
    version: str
    licence: str


def packages() -> tuple[Package, ...]:
    """Moiety, and whatever of its requirements is installed, extras included, and theirs, by name."""
    found: dict[str, Package] = {}
    waiting = [_ROOT]
    while waiting:
        name = _canonical(waiting.pop())
        if name in found:
            continue
        try:
            known = distribution(name)
        except PackageNotFoundError:  # of another platform, or of an extra that nobody asked for
            continue
        found[name] = Package(name, known.version, _licence(known))
        waiting += [match[0] for line in known.requires or () if (match := _NAME.match(line))]
    return tuple(found[name] for name in sorted(found))


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX 1.6."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": one.name,
                "version": one.version,
                "purl": f"pkg:pypi/{one.name}@{one.version}",
                "licenses": [{"license": {"name": one.licence}}],
            }
            for one in packages()
        ],
    }


def licences(
    json_output: Annotated[bool, typer.Option("--json", help="A bill of materials, CycloneDX 1.6.")] = False,
) -> None:
    """List the packages of this installation, with version and licence.

    Example: moiety licences --json
    """
    if json_output:
        sys.stdout.write(json.dumps(bill_of_materials(), indent=1) + "\n")
        return
    for one in packages():
        sys.stdout.write(f"{one.name} {one.version}: {one.licence}\n")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(known: Distribution) -> str:
    said = known.metadata.get_all("License-Expression") or []
    classified = [
        line.removeprefix(_CLASSIFIER)
        for line in known.metadata.get_all("Classifier") or []
        if line.startswith(_CLASSIFIER)
    ]
    words = [line.strip() for text in known.metadata.get_all("License") or [] for line in text.splitlines()]
    short = [line for line in words if line and len(line) <= _LONGEST_NAME]
    return next(iter((*said, *classified, *short)), UNKNOWN)
