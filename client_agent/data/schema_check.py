"""Were a site's examples made by the study's schema? Compared before the agent says that it is ready."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from client_agent.learning.data import Named, difference
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TableSchema

TRANSFORMATION_FILE: Final = "transformation.json"


class _Kept(Frozen, extra="ignore"):
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
    between = difference(Named(of, _lines(wanted)), Named(str(folder), _lines(kept)))
    raise ConfigurationError(
        f"{of}: its schema is not the one that {folder} was made by:\n{between}\nprepare the data again with this "
        "study's file (moiety data prepare), and start again"
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


def _lines(schema: TableSchema) -> tuple[str, ...]:
    """A line for every column and for every other part."""
    parts = json.loads(schema.canonical())
    columns = [f"column {json.dumps(column, ensure_ascii=False)}" for column in parts.pop("columns")]
    others = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(parts.items()))
    return (*others, *columns)
