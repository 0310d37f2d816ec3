"""Brings a database to the newest schema; run at every start of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy.exc import OperationalError

from protocol.errors import ConfigurationError
from servers.store.database import open_engine

_SCRIPTS: Final = Path(__file__).parent / "migrations"


def upgrade(url: str) -> None:
    """Apply every migration that the database does not have yet, in one transaction each. Raises: ConfigurationError"""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    engine = open_engine(url)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise ConfigurationError(
            f"the server's database cannot be opened or upgraded: {str(error.orig).strip()}; see to its disk, or to "
            "key 'database_url' and whether PostgreSQL runs there"
        ) from None
    finally:
        engine.dispose()
