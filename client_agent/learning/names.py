"""A site's names of the columns and classes of its data, compared with those of others.

A model that is trained on columns in another order, or on labels that mean something else, learns nonsense without any
error. So names are equal, in the same order, or nothing begins (docs/joining.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigurationError
from protocol.text import NamesKind, comparable, lookalike

_MOST_LINES: Final = 60
_WHAT: Final = {NamesKind.FEATURES: "the columns of X", NamesKind.CLASSES: "the classes of y"}
_MEND: Final = {
    NamesKind.FEATURES: "bring X and feature_names into the study's order and call the columns by its names",
    NamesKind.CLASSES: "number y and class_names as the study does",
}


@dataclass(frozen=True)
class DataNames:
    """The names of the columns of X and of the classes of y; empty where nothing says."""

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def of(self, kind: NamesKind) -> tuple[str, ...]:
        return self.features if kind is NamesKind.FEATURES else self.classes


NO_NAMES: Final = DataNames()


@dataclass(frozen=True)
class Named:
    """Somebody's names; empty where it gives none."""

    giver: str
    names: tuple[str, ...]

    @property
    def compared(self) -> tuple[str, ...]:
        """Letters as Unicode composes them: a Mac and a PC write the same name in different bytes."""
        return tuple(map(comparable, self.names))


def require_same_names(found: Sequence[Named], kind: NamesKind, givers: str, where: str) -> None:
    """All give the same names in the same order, or none does. Raises: ConfigurationError with the difference"""
    first = found[0]
    silent = [one.giver for one in found if not one.names]
    if silent and len(silent) < len(found):
        raise ConfigurationError(
            f"{where}: {', '.join(silent)} give no {kind.value} and the others do: all {givers} give them, or none does"
        )
    for other in found[1:]:
        if other.compared != first.compared:
            raise ConfigurationError(
                f"{where}: {kind.value} differ between {givers} {first.giver!r} and {other.giver!r}"
                f"{_only_order(first, other)}:\n{difference(first, other)}"
            )


def require_names_of_study(wanted: DataNames, found: DataNames, study: str, where: str) -> None:
    """Require that the data at ``where`` name alike what the study names; what it does not name is not compared.

    Raises: ConfigurationError with the difference and what to do
    """
    for kind in NamesKind:
        theirs, ours = Named(f"study {study}", wanted.of(kind)), Named(where, found.of(kind))
        if theirs.names and not ours.names:
            raise ConfigurationError(
                f"study {study!r} says what {_WHAT[kind]} are called, {where} does not: give {kind.value} beside X and "
                "y, so that they can be compared (docs/joining.md), and start again"
            )
        if theirs.names and ours.compared != theirs.compared:
            raise ConfigurationError(
                f"study {study!r}: its {kind.value} are not those of {where}{_only_order(theirs, ours)}:\n"
                f"{difference(theirs, ours)}\n{_MEND[kind]}, and start again; if the study is wrong, another "
                "one is needed"
            )


def difference(one: Named, other: Named) -> str:
    """A unified diff of the names, cut after some lines; where two look alike, letters beyond ASCII by number."""
    ours, theirs = one.compared, other.compared
    if {lookalike(name) for name in set(ours) - set(theirs)} & {lookalike(name) for name in set(theirs) - set(ours)}:
        ours, theirs = (tuple(ascii(name)[1:-1] for name in names) for names in (ours, theirs))
    lines = list(difflib.unified_diff(ours, theirs, one.giver, other.giver, lineterm="", n=1))
    cut = lines[:_MOST_LINES]
    return "\n".join(cut if len(cut) == len(lines) else [*cut, f"... and {len(lines) - len(cut)} lines more"])


def _only_order(one: Named, other: Named) -> str:
    return ", the same names in another order" if sorted(one.compared) == sorted(other.compared) else ""
