"""`moiety server restored`: an operator says that an older database was put back, and the server goes on without it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from servers.commands.making import ConfigOption, JsonOption

if TYPE_CHECKING:
    from servers.settings import ServerSettings


def restored(
    config: ConfigOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_output: JsonOption = False,
) -> None:
    """An older data_dir or database was put back and there is no newer one: begin anew with what it knows.

    While the server is stopped. Every study under way at either server can only be cancelled after that; a copy that
    knows all that the server ever signed, one made after it was stopped for instance, needs no such word.
    """
    from servers.enrolment.pairing import completed
    from servers.settings import load_settings

    settings = completed(load_settings(config))
    if not yes:
        typer.confirm(
            "Every study under way at both servers will only be cancelled after this. Is there really no newer copy?",
            abort=True,
        )
    stranded = declare_restored(settings)
    if json_output:
        typer.echo(json.dumps({"stranded": stranded}))
        return
    typer.echo("the other server hears of it at the next start of this one")
    typer.echo(
        f"to be cancelled by their requester (moiety study cancel NAME): {', '.join(stranded) or 'none was under way'}"
    )


def declare_restored(settings: ServerSettings) -> list[str]:
    """-> the names of the studies that do not go on. Raises: ConfigurationError, also while the server runs"""
    from host.one_holder import one_process
    from servers.identity import load_identity
    from servers.store.migrate import upgrade
    from servers.store.sql import SqlStore

    _, keys, _ = load_identity(settings)
    with one_process(settings.data_dir, "data_dir", f"the server of side {settings.side.value!r}"):
        upgrade(settings.database)
        store = SqlStore(settings.database, lambda _: None)
        try:
            return store.declare_restored(keys.name, time.time())
        finally:
            store.close()
