"""The pages' texts in other languages than English, which is the source: one TOML table for each, English = other.

A text that is in no table is shown in English; tests see to it that the tables are complete.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

SOURCE: Final = "en"
LANGUAGES: Final[Mapping[str, str]] = {"en": "English", "de": "Deutsch"}
"""By their codes, each in its own name."""
_FOLDER: Final = "texts"


def texts_in(language: str, packages: tuple[str, ...]) -> dict[str, str]:
    """The tables of that language in those packages, together; empty for English."""
    found: dict[str, str] = {}
    for package in packages:
        path = files(package) / _FOLDER / f"{language}.toml"
        if path.is_file():
            found |= tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def chosen_language(chosen: str | None, accepted: str | None) -> str:
    """Return the reader's choice, else the first known language of its Accept-Language header, else English.

    Languages with the same preference count in their order.
    """
    if chosen in LANGUAGES:
        return str(chosen)
    wanted = [_preferred(part) for part in (accepted or "")[:500].split(",")]
    for _, code in sorted((one for one in wanted if one[0] > 0), key=lambda one: -one[0]):
        if code in LANGUAGES:
            return code
    return SOURCE


def _preferred(part: str) -> tuple[float, str]:
    tag, _, parameter = part.strip().partition(";")
    name, _, value = parameter.strip().partition("=")
    try:
        weight = float(value) if name == "q" else 1.0
    except ValueError:
        weight = 0.0
    return weight, tag.strip().split("-")[0].lower()
