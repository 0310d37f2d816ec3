"""``moiety server``: run one of the two servers."""

from __future__ import annotations

import os

import typer

from host.subcommand import command
from host.unexpected import end_with
from servers.commands.deleting import _Delete, _delete
from servers.commands.draining import _Drain, _drain
from servers.commands.enrolling import admissions, admit, invitations, invite, remove, withdraw
from servers.commands.making import ConfigOption, _Init, _init, card, pair, renew
from servers.commands.restoring import restored
from servers.commands.status import status

app = typer.Typer(help="Run one of the two servers.", no_args_is_help=True)


@app.callback()
def server() -> None:
    """Run one of the two servers."""


def run(config: ConfigOption) -> None:
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


for one in (
    command(_Init, _init),
    card,
    pair,
    renew,
    invite,
    invitations,
    withdraw,
    admissions,
    admit,
    remove,
    command(_Delete, _delete),
    command(_Drain, _drain),
    restored,
    status,
    run,
):
    app.command()(one)


if __name__ == "__main__":
    end_with(app)
