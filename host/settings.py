"""A program's settings: one TOML file, overridden by variables of the environment; strict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings

from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError


def read_text(path: Path) -> str:
    """A text file's content; ConfigurationError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def file_table(settings: type[BaseSettings], path: Path, folder: Path) -> dict[str, Any]:
    """What the file says, its relative paths from ``folder`` on.

    Raises: ConfigurationError, also for a variable that has the settings' prefix and is none of them
    """
    table = parse_toml(read_text(path), str(path))
    _refuse_unknown_variables(settings)
    paths = {name for name, field in settings.model_fields.items() if field.annotation in (Path, Path | None)}
    return {key: folder / value if key in paths and isinstance(value, str) else value for key, value in table.items()}


def _refuse_unknown_variables(settings: type[BaseSettings]) -> None:
    prefix, known = str(settings.model_config["env_prefix"]), settings.model_fields
    for name in sorted(os.environ):
        if name.startswith(prefix) and name.removeprefix(prefix).lower().split("__")[0] not in known:
            raise ConfigurationError(f"{name}: no such setting (allowed: {', '.join(sorted(known))})")
