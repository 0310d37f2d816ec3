"""Brings a database to the newest schema; run at every start of a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from protocol.errors import ConfigurationError
from servers.store.database import open_engine

_REVISION: Final = re.compile("[0-9]{4}")
_SCRIPTS: Final = Path(__file__).parent / "migrations"


def upgrade(url: str) -> None:
    """Apply every migration that the database does not have yet, in one transaction each. Raises: ConfigurationError"""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    engine = open_engine(url)
    try:
        with engine.begin() as connection:
            if _is_newest(connection, ScriptDirectory.from_config(config)):
                return
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        said = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
        raise ConfigurationError(
            f"the server's database cannot be opened or upgraded: {said}; see to its disk, or to key "
            "'database_url', whether PostgreSQL runs there, and that role's rights on the schema"
        ) from None
    finally:
        engine.dispose()


def _is_newest(connection: Connection, scripts: ScriptDirectory) -> bool:
    """Return whether nothing is left to do. A database that is too old or too new for the migrations is refused."""
    heads = MigrationContext.configure(connection).get_current_heads()
    if len(heads) > 1 or not all(isinstance(head, str) and _REVISION.fullmatch(head) for head in heads):
        said = ", ".join("NULL" if head is None else repr(str(head)[:40]) for head in heads[:5])
        raise ConfigurationError(
            f"the server's database has no readable schema version (table alembic_version holds {said}): put a backup "
            "in its place (docs/operating.md)"
        )
    found = heads[0] if heads else None
    known = [script.revision for script in scripts.walk_revisions("base", "heads")][::-1]
    if found is not None and found not in known:
        remedy = f"start a version on it once that brings it to {known[0]}, then this one"
        if found > known[-1]:
            remedy = "install the version that wrote it, or a newer one"
        raise ConfigurationError(
            f"the server's database has schema {found}, this version opens {known[0]} to {known[-1]}: {remedy}"
        )
    return found == known[-1]
