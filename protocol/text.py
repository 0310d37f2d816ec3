"""Text from other parties: make it fit for a person's eyes, compare its forms, require names that can be compared.

A reason to decline, a server's problem, a name in a study file: whoever writes them is not who reads them. Escape
sequences move a cursor, rewrite a title or hide a line; marks of direction show text in another order than it has;
line breaks forge lines of a log. All are replaced, and the length is bounded.

Names of columns and classes, categories and patients' ids come from many programs, and are compared by these forms.

Names are text for people, shown in other people's logs: printable, short and few enough for a control message.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

MOST_CHARACTERS: Final = 2000
MOST_LINES_CHARACTERS: Final = 2**16
_MOST_LOGGED_CHARACTERS: Final = 2**14
_REPLACEMENT: Final = "\ufffd"
_CUT: Final = " ..."


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """``text`` on one line, of printable characters only, at most ``most`` of them.

    Printable is what Unicode calls letters, marks, numbers, punctuation and symbols, and the space: no control or
    format character (so no escape and no mark of direction), no surrogate, nothing private or unassigned. Other white
    space becomes a space.
    """
    shown = "".join(map(_shown, text[:most]))
    return shown if len(text) <= most else shown[: most - len(_CUT)] + _CUT


def printable_lines(text: str, most: int = MOST_LINES_CHARACTERS) -> str:
    """As ``printable``, with the text's own line feeds: for what this program itself wrote over several lines."""
    return "\n".join(printable(line, most) for line in text[:most].split("\n"))


def printable_values(values: Mapping[str, object]) -> dict[str, object]:
    """As ``printable_lines`` for every text among the values of one line of a log."""
    most = _MOST_LOGGED_CHARACTERS
    return {key: printable_lines(value, most) if isinstance(value, str) else value for key, value in values.items()}


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT


_SPACES: Final = ((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x3000, 0x3000))
_WITHOUT_WIDTH: Final = ((0xAD, 0xAD), (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F))
_RANGES: Final = (*_SPACES, *_WITHOUT_WIDTH, (0xFEFF, 0xFEFF))
INVISIBLE: Final = "".join(chr(one) for first, last in _RANGES for one in range(first, last + 1))
"""Spaces, marks of direction and of byte order, characters without width: nobody sees them around a name."""


def comparable(text: str) -> str:
    """Text as it is compared: in Unicode's composed form (NFC), without spaces and invisible characters around it."""
    return unicodedata.normalize("NFC", text.strip(INVISIBLE))


def lookalike(text: str) -> str:
    """The same for texts that people may take for one another: NFKC, without capitals, spaces or underscores."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(one for one in folded if one not in INVISIBLE and one != "_")


def counted(count: int | None, noun: str) -> str:
    """A number and what it counts: 1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


MAX_NAME_CHARACTERS: Final = 200
MAX_NAMES_BYTES: Final = 2**16
"""The most bytes of the column names together, as JSON, and of the class names: one message lists all studies."""


class NamesKind(StrEnum):
    """The named things: the columns of X, or the classes of y; the value is the key in files and messages."""

    FEATURES = "feature_names"
    CLASSES = "class_names"


def require_layer_name(name: str) -> str:
    """The name of a shared layer, which errors at every site quote. Raises: ValueError"""
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"a layer's name has 1 to {MAX_NAME_CHARACTERS} printable characters")
    return name


def printable_name(name: str) -> str:
    """Text that people are shown as a name. Raises: ValueError"""
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        shown = name[:MAX_NAME_CHARACTERS]
        raise ValueError(f"{shown!r} is no name; take 1 to {MAX_NAME_CHARACTERS} printable characters")
    return name


def printable_text(text: str) -> str:
    """Text that people are shown. Raises: ValueError"""
    if not text.isprintable():
        raise ValueError(f"{text!r} holds a character that is not printable: leave it out")
    return text


def require_nameable(kind: NamesKind, names: tuple[str, ...]) -> None:
    """Every name is printable and there once. Raises: ValueError that says which is not"""
    try:
        for name in names:
            printable_name(name)
    except ValueError as error:
        raise ValueError(f"{kind.value}: {error}") from None
    twice = next((name for name, times in Counter(map(comparable, names)).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{kind.value}: {twice!r} is there more than once, and a name stands for one thing")


def require_one_each(
    feature_names: tuple[str, ...], class_names: tuple[str, ...], inputs: tuple[int, ...], classes: int
) -> None:
    """One name for each column of a flat input and for each class, or none. Raises: ValueError"""
    if feature_names and inputs != (len(feature_names),):
        raise ValueError(
            f"feature_names holds {len(feature_names)} names and one example has shape {list(inputs)}: name every "
            "column of a flat input, or none"
        )
    if class_names and len(class_names) != classes:
        raise ValueError(f"class_names holds {len(class_names)} names {list(class_names)}, the model has {classes}")


def require_model_names(
    feature_names: tuple[str, ...], class_names: tuple[str, ...], inputs: tuple[int, ...], classes: int
) -> None:
    """The names that a study gives, empty where it gives none: nameable, one each, and all fit a control message.

    Raises: ValueError
    """
    for kind, names in ((NamesKind.FEATURES, feature_names), (NamesKind.CLASSES, class_names)):
        require_nameable(kind, names)
        size = len(json.dumps(names).encode())
        if size > MAX_NAMES_BYTES:
            raise ValueError(
                f"{kind.value}: {len(names)} names take {size} bytes, a study holds {MAX_NAMES_BYTES}: shorten them, "
                f"or say {kind.value} = [] in the study's [model] table and agree on them outside of Moiety"
            )
    require_one_each(feature_names, class_names, inputs, classes)
