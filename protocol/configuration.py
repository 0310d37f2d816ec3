"""Strict validation of configuration tables, with errors a person can act on.

Used for every TOML file: an unknown key or a wrong value names the key, what was found and what is allowed. A file of
another kind has many of them: the first few are named.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.errors import ConfigurationError

B = TypeVar("B", bound=BaseModel)
_VALUE_ERROR: Final = "Value error, "
_SHOULD_BE: Final = "Input should be "
_MARK: Final = "\ufeff"
_MOST_TEXTS: Final = 8
"""More errors than a person mends at once: another program's file, or another kind of one."""


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The table in ``text``, with or without a byte-order mark; ConfigurationError with line and column otherwise."""
    try:
        return tomllib.loads(text.lstrip(_MARK))
    except RecursionError:
        raise ConfigurationError(f"{source}: not valid TOML: brackets inside of brackets without end") from None
    except ValueError as error:  # also a number of thousands of digits
        raise ConfigurationError(f"{source}: not valid TOML: {error}") from None


def validated(kind: type[B], table: Mapping[str, Any], source: str) -> B:
    """``table`` as a ``kind``; ConfigurationError names the keys that are wrong."""
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {explain(kind, error)}") from None


def explain(kind: type[BaseModel], error: ValidationError) -> str:
    """Say what is wrong, in words."""
    return explained(kind, error.errors(include_url=False))


def explained(kind: type[BaseModel], wrong: Iterable[ErrorDetails]) -> str:
    """Say what is wrong, in words; what fits no branch of a union is one text, not one for each branch."""
    texts: list[str] = []
    branches: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    shown = set[tuple[int | str, ...]]()
    for detail in wrong:
        union = _union_at(kind, detail["loc"])
        if union is None:
            texts.append(_describe(kind, detail, shown))
        else:
            branches.setdefault(union, []).append(detail)
    texts += [_describe_union(where, details) for where, details in branches.items()]
    if len(texts) > _MOST_TEXTS:
        texts = [*texts[:_MOST_TEXTS], f"and {len(texts) - _MOST_TEXTS} more: is it the right file?"]
    return "; ".join(texts)


def _describe(kind: type[BaseModel], detail: ErrorDetails, shown: set[tuple[int | str, ...]]) -> str:
    """One validation error in words: key, found, allowed; ``shown``: tables whose keys stand there already."""
    where = _key(detail["loc"])
    if detail["type"] == "extra_forbidden":
        table = detail["loc"][:-1]
        allowed = sorted(_fields_at(kind, table))
        near = difflib.get_close_matches(str(detail["loc"][-1]), allowed, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        keys = "" if table in shown else f" (allowed: {', '.join(allowed)})"
        shown.add(table)
        return f"unknown key '{where}'{hint}{keys}"
    if detail["type"] == "missing":
        return f"key '{where}' is missing"
    text = detail["msg"].removeprefix(_VALUE_ERROR) + _found(detail)
    return f"key '{where}': {text}" if where else text


def _describe_union(where: tuple[int | str, ...], details: Sequence[ErrorDetails]) -> str:
    """``where`` holds a union; each of ``details`` says why one branch, or an entry of it, does not fit."""
    reasons, whole = list[str](), _found(details[0])
    for detail in details:
        entry = _key(detail["loc"][len(where) + 1 :])
        text = detail["msg"].removeprefix(_VALUE_ERROR)
        if entry:
            reasons.append(f"entry {entry}: {text}{_found(detail)}")
            whole = ""
        else:
            reasons.append(text.removeprefix(_SHOULD_BE) if reasons else text)
    return f"key '{_key(where)}': {' or '.join(reasons)}{whole}"


def _key(path: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in path)


def _found(detail: ErrorDetails) -> str:
    return "" if isinstance(detail["input"], Mapping) else f", found {detail['input']!r}"


def _union_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    """Return the position of a union on the way down ``path``; pydantic puts the name of a branch after it."""
    for length in range(1, len(path)):
        if len(_branches(_annotation_at(kind, path[:length]))) > 1:
            return path[:length]
    return None


def _branches(annotation: object) -> tuple[Any, ...]:
    """The types a value may have, without None."""
    if get_origin(annotation) not in (Union, UnionType):
        return (annotation,)
    return tuple(branch for branch in get_args(annotation) if branch is not NoneType)


def _annotation_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> object:
    """The type of what stands at ``path``; None where the tables do not say."""
    current: Any = kind
    for part in path:
        (current, *others) = _branches(current)
        entry = _entry(current)
        if entry is not None and not others:
            current = entry
            continue
        if others or not (isinstance(current, type) and issubclass(current, BaseModel)):
            return None
        field = next((one for name, one in current.model_fields.items() if str(part) in (name, one.alias)), None)
        current = None if field is None else field.annotation
    return current


def _entry(annotation: object) -> object:
    """The type of a table's or an array's entries; None for what has none, or entries of several types."""
    types = [one for one in get_args(annotation) if one is not Ellipsis]
    if get_origin(annotation) in (Mapping, dict):
        return types[1]
    return types[0] if get_origin(annotation) in (tuple, list, Sequence) and len(types) == 1 else None


def _fields_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed in the (possibly nested) table at ``path``."""
    (table, *_) = _branches(_annotation_at(kind, path))
    if not (isinstance(table, type) and issubclass(table, BaseModel)):
        return []
    return [field.alias or name for name, field in table.model_fields.items()]
