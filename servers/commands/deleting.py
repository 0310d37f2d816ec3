"""``moiety server delete``: beside the server that runs, which does it within seconds, or where none runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servers.commands.making import ConfigOption, JsonOption

if TYPE_CHECKING:
    from protocol.wire.messages import Signed
    from protocol.wire.studies.deletion import ServerDeletionReceipt
    from servers.retention.deleting import Request
    from servers.settings import ServerSettings

_DELETION_WITHIN_S: Final = 60.0
_DELETION_EVERY_S: Final = 0.1
_DELETION_SAID_AFTER_S: Final = 15.0
_STAYS: Final = (
    "What stays: the signed study and its end, what was signed in its rounds with the receipts for what sites sent (a "
    "site compares its memory with them), and the audit log. Backups you delete yourself."
)


@dataclass(frozen=True)
class _Delete:
    """Delete what this server holds of a study that is over, with a signed receipt of every file."""

    study: Annotated[str, typer.Argument(help="The study's name.")]
    config: ConfigOption
    person: Annotated[str, typer.Option(help="Who says so: in the receipt and in the audit log.")]
    reason: Annotated[str, typer.Option(help="Likewise; such as the permit that has ended.")] = ""
    json_output: JsonOption = False


def _delete(asked: _Delete) -> None:
    from servers.retention.deleting import Request, receipt_path
    from servers.settings import load_settings

    settings = load_settings(asked.config)
    signed = _deleted(settings, Request(asked.study, asked.person.strip(), asked.reason))
    if asked.json_output:
        typer.echo(signed.model_dump_json())
        return
    found = signed.message
    size_bytes = sum(one.size_bytes for one in found.files)
    typer.echo(
        f"study {asked.study}: {len(found.files)} files of {size_bytes:,} bytes, {found.letters} letters, "
        f"{found.answers} answers and the seeds of {found.rounds} attempts are deleted; the signed receipt is "
        f"{receipt_path(settings.data_dir, asked.study)}\n{_STAYS}"
    )


def _deleted(settings: ServerSettings, request: Request) -> Signed[ServerDeletionReceipt]:
    """Raises: ConfigurationError; Unavailable, StorageFull or OSError, where it is not done yet: it is gone on with"""
    from host.audit.log import AuditLog
    from host.one_holder import holder_of, one_process
    from protocol.errors import ConfigurationError
    from servers.identity import load_identity
    from servers.retention.deleting import Holder, delete_study, require_over
    from servers.retention.keeping import ask
    from servers.store.database import database_exists
    from servers.store.files.shares import ShareFiles
    from servers.store.sql import SqlStore

    if not request.person:
        raise ConfigurationError("deleting needs the name of the person who asks for it: --person")
    if not database_exists(settings.database):
        raise ConfigurationError(f"no study {request.study!r} is at this server: it has never been started")
    store = SqlStore(settings.database, lambda _: None)
    try:
        require_over(store.study_named(request.study), request.study)
        if holder_of(settings.data_dir) is not None:
            return _by_the_server(settings.data_dir, request)
        with one_process(settings.data_dir, "data_dir", "a deletion"):
            _, keys, _ = load_identity(settings)
            files = ShareFiles(settings.data_dir / "shares", settings.limits.disk_reserve_bytes)
            audit = AuditLog(settings.data_dir, keys.name)
            waits = ask(settings.data_dir, request)  # a server that starts goes on with what breaks off here
            signed = delete_study(Holder(settings.data_dir, keys, store, files, audit), request)
            waits.unlink(missing_ok=True)
            return signed
    finally:
        store.close()


def _by_the_server(data_dir: Path, request: Request) -> Signed[ServerDeletionReceipt]:
    """It takes the request away once nothing is left; whatever keeps it from that, it tries again by itself."""
    from protocol.errors import ConfigurationError, Unavailable
    from protocol.wire.messages import Signed
    from protocol.wire.studies.deletion import ServerDeletionReceipt
    from servers.retention.deleting import receipt_path
    from servers.retention.keeping import LOOKED_AT_EVERY_S, ask

    waits, receipt, since_s, said = ask(data_dir, request), receipt_path(data_dir, request.study), time.monotonic(), ""
    while (waited_s := time.monotonic() - since_s) < _DELETION_WITHIN_S:
        if not waits.exists():
            if receipt.exists():
                return Signed[ServerDeletionReceipt].parse(receipt.read_bytes())
            raise ConfigurationError(f"the server that runs refused to delete study {request.study!r}: see its log")
        if waited_s > _DELETION_SAID_AFTER_S and said != _awaited(receipt):
            said = _awaited(receipt)
            typer.echo(f"waiting: the server that runs {said}", err=True)
        time.sleep(_DELETION_EVERY_S)
    raise Unavailable(
        f"study {request.study!r} is not deleted: for {_DELETION_WITHIN_S:g} s the server that runs {_awaited(receipt)}. See "
        f"its log (not_deleted). The request stays, it tries every {LOOKED_AT_EVERY_S:g} s and after a restart until all "
        "is gone; the same command waits for it again"
    )


def _awaited(receipt: Path) -> str:
    if receipt.exists():
        return "has not deleted all that is in the receipt"
    return "has signed no receipt: it does not see the request, reads what it will delete, or something keeps it"
