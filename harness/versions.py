"""The versions that numbers depend on: Python's, the protocol's, the packages'."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from protocol.parameters import PROTOCOL_VERSION

_PACKAGES: Final = ("cryptography", "fastapi", "httpx", "numba", "numpy", "PyNaCl", "scikit-learn", "torch")


@dataclass(frozen=True)
class Version:
    """A program or package and its version."""

    name: str
    version: str


def versions() -> tuple[Version, ...]:
    """Python's, the protocol's and the packages' that matter for the numbers."""
    found = [Version("python", platform.python_version()), Version("protocol", PROTOCOL_VERSION)]
    for name in _PACKAGES:
        try:
            found.append(Version(name, version(name)))
        except PackageNotFoundError:
            found.append(Version(name, "not installed"))
    return tuple(found)
