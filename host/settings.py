"""A program's settings: one TOML file, overridden by variables of the environment; strict."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic_settings import BaseSettings

from host.files import text_of, why_unreadable
from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError


def read_text(path: Path) -> str:
    """A text file's content; ConfigurationError when it cannot be read."""
    try:
        return text_of(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None


def require_begun(key: str, folder: Path, made_by: str) -> None:
    """Whoever asks what a folder holds is not told "nothing" of one that does not exist.

    ``made_by``: what makes the folder when it first runs. Raises: ConfigurationError
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"key '{key}': the folder {folder} does not exist: either {made_by} has never run with these settings, or "
            "they name another folder than it used"
        )


def file_table(
    settings: type[BaseSettings], path: Path, folder: Path, removed: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Read the file's table; relative paths start at ``folder``.

    ``removed``: keys of earlier releases, ``table.key`` where they stood in a table, and what holds instead.

    Raises: ConfigurationError, also for a variable that has the settings' prefix and is none of them
    """
    table = parse_toml(read_text(path), str(path))
    _refuse_removed(settings, table, str(path), removed)
    _refuse_unknown_variables(settings)
    return _placed(settings, table, folder)


def _placed(model: type[BaseModel], table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table with its paths in ``folder``, those of tables in it too; what is no table is left for validation."""
    placed = dict(table)
    for name, field in model.model_fields.items():
        kind, value = field.annotation, table.get(name)
        if kind in (Path, Path | None) and isinstance(value, str):
            placed[name] = folder / value
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
            placed[name] = _placed(kind, value, folder)
    return placed


def _refuse_removed(
    settings: type[BaseSettings], table: Mapping[str, Any], path: str, removed: Mapping[str, str]
) -> None:
    prefix = str(settings.model_config["env_prefix"])
    for key, instead in removed.items():
        variable, (first, *inside) = prefix + key.replace(".", "__").upper(), key.split(".")
        places = [f"{path}: key '{key}'"] if _holds(table, key.split(".")) else []
        places += [name for name in sorted(os.environ) if name == variable or name.startswith(f"{variable}__")]
        whole = prefix + first.upper()
        if inside and _holds(_as_json(os.environ.get(whole, "")), inside):
            places.append(f"{whole}: key '{'.'.join(inside)}'")
        if places:
            raise ConfigurationError(f"{places[0]} is no setting any more: take it out; {instead}")


def _holds(table: object, keys: Sequence[str]) -> bool:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table is not None


def _as_json(variable: str) -> object:
    """The table that a variable holds; None for another text, which validation refuses where it belongs nowhere."""
    try:
        return json.loads(variable)
    except ValueError:
        return None


def _refuse_unknown_variables(settings: type[BaseSettings]) -> None:
    prefix, known = str(settings.model_config["env_prefix"]), settings.model_fields
    for name in sorted(os.environ):
        if name.startswith(prefix) and name.removeprefix(prefix).lower().split("__")[0] not in known:
            raise ConfigurationError(f"{name}: no such setting (allowed: {', '.join(sorted(known))})")
