"""Strict validation of configuration tables, with errors a person can act on.

Used for every TOML file: an unknown key or a wrong value names the key, what was found and what is allowed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.errors import ConfigurationError

B = TypeVar("B", bound=BaseModel)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The table in ``text``; ConfigurationError with line and column when it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: not valid TOML: {error}") from None


def validated(kind: type[B], table: Mapping[str, Any], source: str) -> B:
    """``table`` as a ``kind``; ConfigurationError lists every key that is wrong."""
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        lines = [describe(kind, detail) for detail in error.errors(include_url=False)]
        raise ConfigurationError(f"{source}: " + "; ".join(lines)) from None


def describe(kind: type[BaseModel], detail: ErrorDetails) -> str:
    """One validation error in words: key, found, allowed."""
    where = ".".join(str(part) for part in detail["loc"]) or "(whole file)"
    if detail["type"] == "extra_forbidden":
        allowed = sorted(_fields_at(kind, detail["loc"][:-1]))
        near = difflib.get_close_matches(str(detail["loc"][-1]), allowed, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"unknown key '{where}'{hint} (allowed: {', '.join(allowed)})"
    if detail["type"] == "missing":
        return f"key '{where}' is missing"
    found = "" if isinstance(detail["input"], Mapping) else f", found {detail['input']!r}"
    return f"key '{where}': {detail['msg']}{found}"


def _fields_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed in the (possibly nested) table at ``path``."""
    current: Any = kind
    for part in path:
        field = current.model_fields.get(part) if isinstance(part, str) else None
        annotation = field.annotation if field is not None else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        current = annotation
    return list(current.model_fields)
