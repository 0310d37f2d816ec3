"""``moiety server status``: how the server stands, from the running one, or else from its database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.printable import printable
from servers.commands.making import ConfigOption, JsonOption

if TYPE_CHECKING:
    from servers.settings import ServerSettings
    from servers.status import PeerStatus, SiteStatus, Status, StorageStatus, StudyStatus

_TIMEOUT_S: Final = 30.0
_LAST_REFUSED: Final = 10
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # asked at the loopback
_HTTP_NOT_FOUND: Final = 404


def status(
    config: ConfigOption,
    study: Annotated[str | None, typer.Argument(help="One study, with its sites and its last 100 rounds.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Show readiness, alarms with their remedies, peer, disk, refusals, studies and who is awaited. Nothing is written.

    Example: moiety server status --config settings.toml
    """
    from host.one_holder import holder_of
    from protocol.errors import ConfigurationError
    from servers.settings import load_settings
    from servers.status import status_of_stopped

    settings = load_settings(config)
    if not settings.roster.exists():
        raise ConfigurationError("the federation is not founded yet: 'moiety doctor' says what the server waits for")
    if holder_of(settings.data_dir) is None:
        found = status_of_stopped(settings, time.time(), study)
    else:
        found = _asked(settings, study)
    typer.echo(found.model_dump_json() if json_output else "\n".join(status_lines(found, in_full=study is not None)))


def _asked(settings: ServerSettings, study: str | None) -> Status:
    """Of the server that runs, at its operator's own port. Raises: ConfigurationError, UnknownStudy, Unavailable"""
    import httpx

    from protocol.errors import ConfigurationError, Unavailable, UnknownStudy
    from servers.status import Status, read_token

    host = _ANY_ADDRESS.get(settings.operations_host, settings.operations_host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.operations}/status"
    given = {"authorization": f"Bearer {read_token(settings.data_dir)}"}
    query = {} if study is None else {"study": study}
    try:
        answer = httpx.get(url, headers=given, params=query, timeout=_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"a server runs on {settings.data_dir} and does not answer at {url} ({error}): wait until it has started, "
            "or see its log"
        ) from None
    if study is not None and answer.status_code == _HTTP_NOT_FOUND:
        raise UnknownStudy(str(answer.json().get("detail")))
    if not answer.is_success:
        raise ConfigurationError(
            f"{url} answers {answer.status_code}: is the server of {settings.data_dir} another release, or another "
            "program on this port (key 'operations_port')?"
        )
    return Status.model_validate_json(answer.content)


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
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
