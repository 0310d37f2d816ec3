"""One attack: its row in ``attacks.csv``, how it is made, and what takes its defence's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from harness.attack.signed_client import Deployment

_MISSING: Final = object()


class Party(StrEnum):
    """The attacker; docs/threat_model.md says what several have together."""

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
    """The result of an attack: whether it reached what it tries, and its figure, in the attack's own unit.

    ``note`` says more in words where there is more to say: an interval, or which of several messages went through.
    """

    succeeded: bool
    figure: float
    note: str = ""


def found(reached: list[str]) -> Found:
    """The result of several tries, of which these succeeded."""
    return Found(bool(reached), len(reached), "; ".join(reached))


@dataclass(frozen=True)
class Attempt:
    """The making of an attack. ``run`` attacks a fresh federation whose files go into the folder that it is given.

    ``without`` is the defence, as functions of the product and what takes their place in this process when the attack
    is shown to be real: a check that passes everything, or the step it guards left out. ``on``: the same against
    servers that run somewhere, for attacks that need no more than a site's keys.
    """

    run: Callable[[Path], Found]
    without: Mapping[str, object] = field(default_factory=dict)
    on: Callable[[Deployment], Found] | None = None


@dataclass(frozen=True)
class Attack:
    """``name`` is what ``moiety attack NAME`` takes, ``figure`` says what the number is and its unit.

    ``promised``: docs/threat_model.md promises that it fails. Where it does not, the attack's name stands there beside
    what it reaches.
    """

    name: str
    party: Party
    promised: bool
    tries: str
    defence: str
    figure: str
    how: Attempt


@contextmanager
def taken_out(defence: Mapping[str, object]) -> Iterator[None]:
    """Replace functions in this process, by the path of their module and their name in it; never a setting.

    Raises: AttributeError, where the product has no such function any more
    """
    with ExitStack() as stack:
        for place, instead in defence.items():
            owner, _, name = place.rpartition(".")
            stack.enter_context(replaced(resolve_name(owner), name, instead))
        yield


@contextmanager
def replaced(owner: Any, name: str, instead: object) -> Iterator[None]:  # noqa: ANN401  # a module or a class
    """An attribute of a module or class, replaced for a while. Raises: AttributeError, where it has none"""
    getattr(owner, name)
    own = vars(owner).get(name, _MISSING)  # as it is stored: getattr would unwrap static and class methods
    setattr(owner, name, instead)
    try:
        yield
    finally:
        if own is _MISSING:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def passes(*_: object, **__: object) -> None:
    """Takes the place of a check that raises."""


NO_SIGNATURE_COUNTS: Final[Mapping[str, object]] = {"protocol.channel.keys.VerifyKey.verify": passes}
"""Taken out: the check of signatures."""
