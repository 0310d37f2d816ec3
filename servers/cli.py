"""``moiety server``: run one of the two servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from host.unexpected import end_with
from servers.commands import deleting, draining, enrolling, making, restoring

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


@app.command()
def studies(
    config: Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")],
    json_output: Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")] = False,
) -> None:
    """The studies at this server: state, reason, round under way, who is ready. Nothing is written."""
    from servers.page.overview import studies_at
    from servers.settings import load_settings

    found = studies_at(load_settings(config))
    if not found and not json_output:
        typer.echo("no study is at this server")
    for one in found:
        if json_output:
            typer.echo(one.model_dump_json())
            continue
        reason = f" ({one.reason})" if one.reason else ""
        typer.echo(f"{one.name}: {one.state}{reason}, {one.rounds} rounds of {one.parameters} parameters")
        typer.echo(f"  ready: {', '.join(one.ready) or 'nobody'}; digest {one.digest}")
        if one.round is not None:
            done = f"{one.contributed} contributions"
            typer.echo(f"  round {one.round}, attempt {one.attempt}: {one.round_state}, {done}")


@app.command()
def doctor(
    config: Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")],
    json_output: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Look at everything that this server needs; each failure says what to do. Status 1 when something failed."""
    from host.doctor.finding import show
    from servers.doctor import examine_server

    if not show(examine_server(config), json_output=json_output):
        raise typer.Exit(1)


@app.command(name="page-password")
def page_password(
    config: Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")],
) -> None:
    """Make a new password for the operator's page, shown here once; it ends every session under the one before."""
    from servers.page.password import make_password
    from servers.settings import load_settings

    settings = load_settings(config)
    password = make_password(settings.data_dir)
    typer.echo(f"the password of {settings.public_url}'s page, shown once: {password}")
    typer.echo(f"open http://127.0.0.1:{settings.operations}/page/ on this machine, or through an SSH tunnel to it")


if __name__ == "__main__":
    end_with(app)
