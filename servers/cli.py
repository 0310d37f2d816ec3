"""``moiety server``: run one of the two servers, look at it, drain it, delete at it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from host.command_line import end_with
from protocol.errors import ConfigurationError, Unavailable, UnknownStudy
from protocol.text import printable
from servers.enrolment import cli as enrolment
from servers.enrolment.cli import ConfigOption, JsonOption

if TYPE_CHECKING:
    import httpx

    from protocol.messages.control import Signed
    from protocol.messages.study import ServerDeletionReceipt
    from servers.background.deletion import Request
    from servers.background.drain import Drained
    from servers.settings import ServerSettings
    from servers.status import PeerStatus, SiteStatus, Status, StorageStatus, StudyStatus

app = enrolment.app


def _settings(config: Path) -> ServerSettings:
    """Load a server's settings, with the other operator's address from its card where they do not name it.

    Raises: ConfigurationError
    """
    from servers.enrolment.pairing import completed
    from servers.settings import load_settings

    return completed(load_settings(config))


@app.callback()
def server() -> None:
    """Run one of the two servers, look at it, and say who may come."""


@app.command()
def run(config: ConfigOption) -> None:
    """Run the server until it is stopped; upgrade its database first.

    Example: moiety server run --config a/settings.toml
    """
    from host import log
    from host.files import UMASK
    from servers.identity.certificate import check_tls
    from servers.ports import serve

    os.umask(UMASK)
    log.configure()
    settings = _settings(config)
    check_tls(settings)
    serve(settings)


_DELETION_WITHIN_S: Final = 60.0
_DELETION_EVERY_S: Final = 0.1
_DELETION_SAID_AFTER_S: Final = 15.0
_STAYS: Final = (
    "What stays: the signed study and its end, what was signed in its rounds with the receipts for what sites sent (a "
    "site compares its memory with them), and the audit log. Backups you delete yourself."
)


@app.command()
def delete(
    study: Annotated[str, typer.Argument(help="The study's name.")],
    config: ConfigOption,
    person: Annotated[str, typer.Option(help="Who decides; kept in the receipt and in the audit log.")],
    reason: Annotated[str, typer.Option(help="Likewise; such as the permit that has ended.")] = "",
    json_output: JsonOption = False,
) -> None:
    """Delete what this server holds of an ended study.

    Leaves a signed receipt of every file.

    Example: moiety server delete heart --person "R. Klein" --config a/settings.toml
    """
    from servers.background.deletion import Request, receipt_path

    settings = _settings(config)
    signed = _deleted(settings, Request(study, person.strip(), reason))
    if json_output:
        typer.echo(signed.model_dump_json())
        return
    found = signed.message
    size_bytes = sum(one.size_bytes for one in found.files)
    typer.echo(
        f"study {study}: {len(found.files)} files of {size_bytes:,} bytes, {found.letters} letters, "
        f"{found.answers} answers and the seeds of {found.rounds} attempts are deleted; the signed receipt is "
        f"{receipt_path(settings.data_dir, study)}\n{_STAYS}"
    )


def _deleted(settings: ServerSettings, request: Request) -> Signed[ServerDeletionReceipt]:
    """Raises: ConfigurationError; Unavailable, StorageFull or OSError, where it is not done yet: it is gone on with"""
    from host.audit_log import AuditLog
    from host.folder_lock import holder_of, one_process
    from servers.background.deletion import Holder, ask, delete_study, require_over
    from servers.identity.roster import load_identity
    from servers.store.database import database_exists
    from servers.store.files import ShareFiles
    from servers.store.sql import SqlStore

    if not request.person:
        raise ConfigurationError("deleting needs the name of the person who asks for it: --person")
    if not database_exists(settings.database):
        raise ConfigurationError(f"no study {request.study!r} is at this server: it has never been started")
    with closing(SqlStore(settings.database, lambda _: None)) as store:
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


def _by_the_server(data_dir: Path, request: Request) -> Signed[ServerDeletionReceipt]:
    """It takes the request away once nothing is left; whatever keeps it from that, it tries again by itself."""
    from protocol.messages.control import Signed
    from protocol.messages.study import ServerDeletionReceipt
    from servers.background.deletion import LOOKED_AT_EVERY_S, ask, receipt_path

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
        f"study {request.study!r} is not deleted: for {_DELETION_WITHIN_S:g} s the server that runs "
        f"{_awaited(receipt)}. See its log (not_deleted). The request stays, it tries every {LOOKED_AT_EVERY_S:g} s "
        "and after a restart until all is gone; the same command waits for it again"
    )


def _awaited(receipt: Path) -> str:
    if receipt.exists():
        return "has not deleted all that is in the receipt"
    return "has signed no receipt: it does not see the request, reads what it will delete, or something keeps it"


_DRAIN_EVERY_S: Final = 0.2
_DRAIN_STOPS_WITHIN_S: Final = 60.0


@app.command()
def drain(
    config: ConfigOption,
    within: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for rounds under way; the rest goes on after the start.")
    ] = 600.0,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Drained, it keeps running until it is stopped: for what restarts containers."),
    ] = False,
) -> None:
    """Drain the running server: end rounds under way, and stop.

    It takes nothing new meanwhile. For an upgrade or a backup.

    Example: moiety server drain --config a/settings.toml
    """
    from host.folder_lock import holder_of
    from servers.background.drain import Drain, ask

    settings = _settings(config)
    data_dir = settings.data_dir
    if holder_of(data_dir) is None:
        raise ConfigurationError(f"key 'data_dir': no server runs on {data_dir}: there is nothing to drain")
    if not settings.roster.exists():
        typer.echo("nothing is under way: the federation is not founded yet; stop it whenever you like")
        return
    ask(data_dir, Drain(within, stay))
    parked = _drained(data_dir, within + _DRAIN_STOPS_WITHIN_S, stays=stay).parked
    left = f"; under way still, and resumed at the start: {', '.join(parked)}" if parked else ""
    then = "stop it, and start the new release" if stay else "it has stopped: start the new release"
    typer.echo(f"no new round or study is taken{left}; {then}")


def _drained(data_dir: Path, within_s: float, *, stays: bool) -> Drained:
    """Raises: Unavailable"""
    from host.folder_lock import holder_of
    from servers.background.drain import drained

    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found = drained(data_dir)
        if found is not None and (stays or holder_of(data_dir) is None):
            return found
        time.sleep(_DRAIN_EVERY_S)
    raise Unavailable(f"the server did not drain within {within_s:g} s: see its log")


@app.command("accept-rollback")
def accept_rollback(
    config: ConfigOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Resume from an older backup, where no newer one exists.

    Stop the server first. Every study under way at either server can only be cancelled after that. A backup that was
    made after the server stopped is not older: it needs no such command.

    Example: moiety server accept-rollback --config a/settings.toml
    """
    settings = _settings(config)
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
    from host.folder_lock import one_process
    from servers.identity.roster import load_identity
    from servers.store.migrate import upgrade
    from servers.store.sql import SqlStore

    _, keys, _ = load_identity(settings)
    with one_process(settings.data_dir, "data_dir", f"the server of side {settings.side.value!r}"):
        upgrade(settings.database)
        with closing(SqlStore(settings.database, lambda _: None)) as store:
            return store.declare_restored(keys.name, time.time())


_TIMEOUT_S: Final = 30.0
_LAST_REFUSED: Final = 10
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # asked at the loopback
_MOST_ANSWER_BYTES: Final = 2**26
_HTTP_OK: Final = 200
_HTTP_NOT_FOUND: Final = 404
_NOT_FOUNDED: Final = "the federation is not founded yet: 'moiety doctor' says what the server waits for"


@app.command()
def status(
    config: ConfigOption,
    study: Annotated[str | None, typer.Argument(help="One study, with its sites and its last 100 rounds.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Show fingerprint, readiness, alarms and remedies, peer, disk, studies.

    The fingerprint is of the operator's card, to be read to the others over the phone. With a study: its sites and its
    last 100 rounds. Nothing is written.

    Example: moiety server status --config a/settings.toml
    """
    from host.folder_lock import holder_of
    from protocol.roster.enrolment import fingerprint_of
    from servers.enrolment.pairing import own_card
    from servers.status import status_of_stopped

    settings = _settings(config)
    own = None if settings.card is None else own_card(settings)[0]
    if settings.roster.exists():
        stopped = holder_of(settings.data_dir) is None
        found = status_of_stopped(settings, time.time(), study) if stopped else _asked(settings, study)
        shown, lines = found.model_dump(mode="json"), list(status_lines(found, in_full=study is not None))
    elif own is None:
        raise ConfigurationError(_NOT_FOUNDED)
    else:
        shown, lines = {}, [_NOT_FOUNDED]
    if own is not None:
        digits, card = fingerprint_of(own), str(settings.card)
        shown["card"] = {"name": own.party.name, "card": card, "fingerprint": digits}
        whose = f"{own.party.name}, side {own.side.value} of {own.federation}, at {own.url}: {card}"
        lines = [whose, f"    {digits}", *lines]
    # json.dumps escapes all but ASCII: a name or reason moves no cursor and turns no direction of writing
    typer.echo(json.dumps(shown) if json_output else "\n".join(map(printable, lines)))


def _asked(settings: ServerSettings, study: str | None) -> Status:
    """Ask the running server at its operator's own port. Raises: ConfigurationError, UnknownStudy, Unavailable"""
    import httpx

    from servers.status import Status, proof, read_token

    host = _ANY_ADDRESS.get(settings.operations_host, settings.operations_host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.operations}/status"
    given = {
        "accept-encoding": "identity",
        "authorization": f"Bearer {proof(read_token(settings.data_dir), int(time.time()))}",
    }
    query = {} if study is None else {"study": study}
    try:
        with httpx.stream("GET", url, headers=given, params=query, timeout=_TIMEOUT_S, trust_env=False) as answer:
            body = _bounded(answer)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"a server runs on {settings.data_dir} and does not answer at {url} ({error}): wait until it has started, "
            "or see its log"
        ) from None
    try:
        if study is not None and answer.status_code == _HTTP_NOT_FOUND:
            problem = json.loads(body)
            if problem["code"] == UnknownStudy.code:
                raise UnknownStudy(str(problem["detail"]))
        return Status.model_validate_json(body if answer.status_code == _HTTP_OK else b"")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigurationError(
            f"{url} answers {answer.status_code}: is the server of {settings.data_dir} another release, or another "
            "program on this port (key 'operations_port')?"
        ) from None


def _bounded(answer: httpx.Response) -> bytes:
    """The body, as it came; too long or too slow a one is no server's. Raises: httpx.ReadError"""
    import httpx

    body, until_s = bytearray(), time.monotonic() + _TIMEOUT_S
    for piece in answer.iter_raw():
        body += piece
        if len(body) > _MOST_ANSWER_BYTES or time.monotonic() > until_s:
            raise httpx.ReadError(f"more than {_MOST_ANSWER_BYTES} bytes, or longer than {_TIMEOUT_S:g} s")
    return bytes(body)


# --- as text; nothing of another party's text moves the cursor ---


def status_lines(found: Status, *, in_full: bool) -> Iterator[str]:
    """The text for a person; ``in_full``: with the sites and attempts of each study."""
    yield f"server {found.side.value} ({found.server}): {'ready for rounds' if found.ready else 'NOT READY'}"
    for alarm in found.alarms:
        yield f"ALARM {printable(alarm.what)}"
        yield f"     -> {printable(alarm.do)}"
    if found.peer is not None:
        yield f"peer {found.peer.name}: {_of_peer(found.peer)}"
    if found.storage is not None:
        yield from _of_storage(found.storage)
    if found.certificate_ends_s is not None:
        yield f"certificate: ends {_moment(found.certificate_ends_s)}"
    yield f"roster: {found.roster_digest}"
    yield from _of_refusals(found)
    if not found.studies:
        yield "no study is at this server"
    for one in found.studies:
        yield from _of_study(one)
        if in_full:
            yield from _in_full(one)


def _of_peer(peer: PeerStatus) -> str:
    seen = "not heard of since this server's start" if peer.seen_at_s is None else f"heard of {_moment(peer.seen_at_s)}"
    clocks = "not compared yet" if peer.ahead_s is None else f"this one is {peer.ahead_s:+.0f} s off, give or take one"
    return f"{seen}; clocks: {clocks}; session for products: {'open' if peer.session_open else 'not open, A opens it'}"


def _of_storage(storage: StorageStatus) -> Iterator[str]:
    yield f"disk: {_size(storage.free_bytes)} free; below {_size(storage.reserve_bytes)} nothing is accepted"
    kept = ", ".join(f"{one.count} {one.kind} ({_size(one.size_bytes)})" for one in storage.files)
    yield f"kept: {kept}; database: {storage.database}, {_size(storage.database_bytes)}"


def _of_refusals(found: Status) -> Iterator[str]:
    if found.refusals:
        yield "refused since the start:"
    for row in found.refusals:
        yield f"  {row.count} times {row.code}: {row.fix}"
    for one in found.last_refused[:_LAST_REFUSED]:
        yield f"  {_moment(one.at_s)} {one.code.value}: {printable(one.detail)}"


def _of_study(one: StudyStatus) -> Iterator[str]:
    reason = f" ({one.reason})" if one.reason else ""
    yield f"{one.name}: {one.state}{reason}, {one.rounds} rounds of {one.parameters} parameters"
    if one.ended:
        return
    yield f"  ready: {', '.join(one.ready) or 'nobody'}; digest {one.digest}"
    if one.round is not None:
        closes = "" if one.closes_at_s is None else f", closes {_moment(one.closes_at_s)}"
        yield f"  round {one.round}, attempt {one.attempt}: {one.round_state}, {one.contributed} contributions{closes}"
    awaited = ", ".join(f"{site.name}{_since(site.awaited_since_s)}" for site in one.missing)
    yield f"  awaited: {awaited or 'nobody'}"


def _in_full(one: StudyStatus) -> Iterator[str]:
    if one.created_at_s is not None:
        yield f"  here{_since(one.created_at_s)}"
    for site in one.sites:
        yield f"  {site.name}{' (asks)' if site.asks else ''}: {', '.join(_of_site(site))}"
    for attempt in one.attempts:
        number = f"round {attempt.number}" + (f", attempt {attempt.attempt}" if attempt.attempt > 1 else "")
        began = "" if attempt.began_at_s is None else f", began {_moment(attempt.began_at_s)}"
        took = "" if attempt.seconds is None else f", {attempt.seconds:.1f} s"
        yield f"  {number}: {attempt.state}{began}{took}; contributed: {', '.join(attempt.contributors) or 'nobody'}"


def _of_site(site: SiteStatus) -> Iterator[str]:
    yield f"ready{_since(site.ready_since_s)}" if site.ready else "not ready"
    yield "contributed" if site.contributed else "listed" if site.listed else "not listed"
    yield "no contribution yet" if site.last_round is None else f"last contribution in round {site.last_round}"
    if site.awaited:
        what = "to say that it is ready" if site.awaited == "ready" else "its contribution"
        yield f"awaited: {what}{_since(site.awaited_since_s)}"


def _since(at_s: float | None) -> str:
    return "" if at_s is None else f" since {_moment(at_s)}"


def _moment(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # another program on the port may say anything
        return f"{at_s:g} s after 1970"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


if __name__ == "__main__":
    end_with(app)
