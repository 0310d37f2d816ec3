"""Names of a study's columns and classes, so that every site can compare (docs/protocol.md 1).

Names are text for people, shown in other people's logs: printable, short and few enough for a control message.
"""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from typing import Final

from protocol.text_forms import comparable

MAX_NAME_CHARACTERS: Final = 200
MAX_NAMES_BYTES: Final = 2**16
"""Of the column names together, as JSON; of the class names likewise. Servers list all studies in one message."""


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
