"""``moiety server``: run one of the two servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from protocol.errors import MoietyError

app = typer.Typer(help="Run one of the two servers.", no_args_is_help=True)


@app.callback()
def server() -> None:
    """Run one of the two servers."""


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")],
) -> None:
    """Upgrade the database, then serve until stopped."""
    import uvicorn

    from servers import log
    from servers.app import create_app
    from servers.settings import check_tls, load_settings

    log.configure()
    settings = load_settings(config)
    check_tls(settings)
    application = create_app(settings)
    uvicorn.run(
        application,
        host=settings.host,
        port=settings.port,
        ssl_certfile=str(settings.tls_certificate),
        ssl_keyfile=str(settings.tls_key),
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    try:
        app()
    except MoietyError as refused:
        typer.echo(f"error ({refused.code.value}): {refused.detail}", err=True)
        sys.exit(2)
