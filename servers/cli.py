"""``moiety server``: run one of the two servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from host.unexpected import end_with
from servers.commands import deleting, draining, enrolling, making, restoring, status

app = typer.Typer(help="Run one of the two servers.", no_args_is_help=True)


@app.callback()
def server() -> None:
    """Run one of the two servers."""


for command in (
    *making.COMMANDS,
    *enrolling.COMMANDS,
    *deleting.COMMANDS,
    *draining.COMMANDS,
    *restoring.COMMANDS,
    *status.COMMANDS,
):
    app.command()(command)


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")],
) -> None:
    """Upgrade the database, then serve until stopped."""
    from host import log
    from host.private_files import UMASK
    from servers.certificate import check_tls
    from servers.enrolment.pairing import completed
    from servers.serving import serve
    from servers.settings import load_settings

    os.umask(UMASK)
    log.configure()
    settings = completed(load_settings(config))
    check_tls(settings)
    serve(settings)


if __name__ == "__main__":
    end_with(app)
