"""Were a site's examples made by the study's schema? Compared before the agent says that it is ready."""

from __future__ import annotations

import difflib
import json
import unicodedata
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TableSchema

TRANSFORMATION_FILE: Final = "transformation.json"
_MOST_LINES: Final = 60


class _Kept(BaseModel):
    """As much of the file as is compared."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    table: TableSchema


def require_made_by_schema(study: Study, folder: Path) -> None:
    """The folder was made by the study's schema; of a study without one nothing is asked.

    Raises: ConfigurationError with the difference and what to do
    """
    require_folder_of_schema(study.data_schema, folder, f"study {study.name!r}")


def require_folder_of_schema(wanted: TableSchema | None, folder: Path, of: str) -> None:
    """The folder was made by the schema ``of`` a study or a case; without a schema nothing is asked.

    Raises: ConfigurationError with the difference and what to do
    """
    if wanted is None:
        return
    kept = _schema_of(folder, of)
    if kept.digest() == wanted.digest():
        return
    ours, theirs = (_lines(schema, ascii_only=False) for schema in (wanted, kept))
    if any(not unicodedata.is_normalized("NFKC", line) for line in {*ours} ^ {*theirs}):
        ours, theirs = (_lines(schema, ascii_only=True) for schema in (wanted, kept))  # they look the same otherwise
    lines = list(difflib.unified_diff(ours, theirs, of, str(folder), lineterm="", n=1))
    cut = lines[:_MOST_LINES] + ([f"... and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else [])
    raise ConfigurationError(
        f"{of}: its schema is not the one that {folder} was made by:\n" + "\n".join(cut) + "\nprepare the "
        "data again with this study's file (moiety data prepare), and start again"
    )


def _schema_of(folder: Path, of: str) -> TableSchema:
    path = folder / TRANSFORMATION_FILE
    try:
        return _Kept.model_validate_json(path.read_bytes()).table
    except OSError:
        raise ConfigurationError(
            f"{of} has a schema and {path} is missing, so nothing says how these data were made: make them "
            "with 'moiety data prepare', and start again"
        ) from None
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: not of this version ({error.error_count()} fields are wrong): prepare the data again"
        ) from None


def _lines(schema: TableSchema, *, ascii_only: bool) -> list[str]:
    """A line for every column and for every other part."""
    parts = json.loads(schema.canonical())
    columns = [f"column {json.dumps(column, ensure_ascii=ascii_only)}" for column in parts.pop("columns")]
    others = (f"{name} = {json.dumps(value, ensure_ascii=ascii_only)}" for name, value in sorted(parts.items()))
    return [*others, *columns]
