"""The project's own classes, found by what they are called and not by where they stand."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from protocol.channel.message import Message

C = TypeVar("C")
ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "host", "servers", "client_agent", "harness")
"""Those that are not there, or not there yet, are left out."""


def classes(base: type[C], mark: str) -> list[type[C]]:
    """Every class of the project below ``base``, by name; ``mark`` is a word without which no file can define one."""
    for module in sorted(_modules_with(mark)):
        importlib.import_module(module)
    found = {kind for kind in _below(base) if kind.__module__.split(".")[0] in PACKAGES}
    return sorted(found, key=lambda kind: kind.__name__)


def messages() -> list[type[Message]]:
    """Every kind of control message; a ``Signed[Study]`` is no kind of its own."""
    kinds = classes(Message, "KIND")
    return [kind for kind in kinds if kind.__pydantic_generic_metadata__["origin"] is None]


def _modules_with(text: str) -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if text in path.read_text(encoding="utf-8"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _below(base: type[C]) -> Iterator[type[C]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)
