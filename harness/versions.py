"""The versions that numbers depend on: Python's, the protocol's, the packages'."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from protocol.parameters import PROTOCOL_VERSION

_PACKAGES: Final = ("cryptography", "fastapi", "httpx", "numba", "numpy", "PyNaCl", "scikit-learn", "torch")


def versions() -> dict[str, str]:
    """Return the versions by program or package."""
    return {"python": platform.python_version(), "protocol": PROTOCOL_VERSION} | {n: _version(n) for n in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
