"""What an attack is: who makes it, what it tries, what should hold, and how far it came."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from unittest import mock


class Party(StrEnum):
    """Who attacks; what they have together is in docs/threat_model.md."""

    SITE = "a site"
    SITES = "several sites"
    REQUESTER = "the requester"
    SERVER = "a server"
    SERVER_AND_SITE = "a server and a site"
    SERVER_AND_REQUESTER = "a server and the requester"
    NETWORK = "the network"
    STRANGER = "a stranger"


@dataclass(frozen=True)
class Found:
    """How far an attack came: whether it reached what it tries, and its figure, in the attack's own unit.

    ``note`` says more in words where there is more to say: an interval, or which of several messages went through.
    """

    succeeded: bool
    figure: float
    note: str = ""


class Attack(ABC):
    """One attack. ``name`` is what ``moiety attack NAME`` takes, ``figure`` says what the number is and its unit.

    ``promised``: docs/threat_model.md promises that it fails. Where it does not, the attack's name stands there beside
    what it reaches. ``without`` is the defence, as functions of the product and what takes their place in this process
    when the attack is shown to be real: a check that passes everything, or the step it guards left out.
    """

    name: str
    party: Party
    tries: str
    defence: str
    figure: str
    promised: bool = True
    without: Mapping[str, object]

    @abstractmethod
    def attempt(self, folder: Path) -> Found:
        """Attack a fresh federation whose files go into ``folder``."""


@contextmanager
def taken_out(defence: Mapping[str, object]) -> Iterator[None]:
    """Functions replaced in this process, by the path of their module and their name in it; never a setting.

    Raises: AttributeError, where the product has no such function any more
    """
    with ExitStack() as stack:
        for place, instead in defence.items():
            owner, name = _owner(place)
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


def _owner(place: str) -> tuple[object, str]:
    """A module, or a class in it, and the name of what is replaced there."""
    path, _, name = place.rpartition(".")
    try:
        return importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, holder = path.rpartition(".")
        return getattr(importlib.import_module(module), holder), name


def passes(*_: object, **__: object) -> None:
    """Takes the place of a check that raises."""


NO_SIGNATURE_COUNTS: Final[Mapping[str, object]] = {
    "http_message_signatures.algorithms.ED25519.verify": passes,
    "protocol.wire.keys.VerifyKey.verify": passes,
}
"""Taken out: the check of signatures, of the usual form and of every other (``protocol/wire/channel/usual.py``)."""
