"""Attacks from outside, on servers of one's own or that run somewhere: without a key, or with one site's."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from harness.attack import forgeries
from harness.attack.attack import NO_SIGNATURE_COUNTS, Attempt, Found, found, passes
from harness.attack.hostile_messages import ANY_LETTER
from harness.attack.scripted_rounds import SMALL, VICTIM, pair_in_memory
from harness.attack.signed_client import (
    HEALTH,
    Deployment,
    Outgoing,
    SignedClient,
    Stranger,
    answer,
    closed_within,
    pour,
    until,
)
from harness.federation.learners import light_sites
from harness.federation.processes import FederationSpec, RunningFederation
from protocol.errors import BrokenSeal, Unavailable
from protocol.messages import paths
from protocol.sharing import Side
from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.app import create_app
from servers.identity.certificate import ServedCertificate
from servers.ports import _config
from servers.settings import Limits, ServerSettings, load_settings

_TIMES: Final = {"header_s": 0.5, "idle_s": 1, "stall_s": 0.5}
_ROOMY: Final = {**_TIMES, "connections_per_address": 512, "unsigned_per_s": 1000.0}
_NARROW: Final = {"connections": 16, "connections_per_address": 8, "unsigned_per_s": 2.0}
_STOP_WITHIN_S: Final = 10.0
_SLACK_S: Final = 2.0
_REQUEST: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
_FLOODING, _OTHER, _THIRD = "127.0.1.1", "127.0.1.2", "127.0.1.3"
At = Callable[[Stranger, Limits], Found]
"""An attack on server B, which has these limits: bytes on sockets, without a key."""


@contextmanager
def server_with(folder: Path, limits: Mapping[str, object]) -> Iterator[Stranger]:
    """Server B with these limits, as strangers reach it; its settings, keys and files are in ``folder``."""
    sites = light_sites([f"hospital-{number}" for number in range(4)])
    files = RunningFederation(FederationSpec("edge", sites[0].name, sites), folder)
    settings = load_settings(files.config(files.parties.roster.message.operator(Side.B).name))
    bounded = settings.limits.model_copy(update=dict(limits))
    server = _server(settings.model_copy(update={"limits": Limits.model_validate(bounded.model_dump())}))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),), name="edge")
    thread.start()
    try:
        if not until(lambda: server.started or not thread.is_alive()) or not thread.is_alive():
            raise Unavailable("the server on the loopback port did not start; its log says why")
        yield Stranger(files.url(Side.B), files.ca_file)
    finally:
        server.should_exit = True
        thread.join(_STOP_WITHIN_S)


def _server(settings: ServerSettings) -> BoundedServer:
    """The public port alone, as ``servers.ports`` makes it."""
    return BoundedServer(
        _config(create_app(settings), settings, tls=True),
        listen("port", settings.host, settings.port),
        Admission(settings.limits, settings.forwarded_by),
        lambda code: None,
        hears_signals=False,
        tls=ServedCertificate(settings).context,
    )


def _on_own_server(at: At, limits: Mapping[str, object], folder: Path) -> Found:
    with server_with(folder, limits) as stranger:
        return at(stranger, Limits.model_validate(limits))


_BEGUN: Final[Mapping[str, bytes]] = {
    "nothing": b"",
    "a newline": b"\r\n",
    "a method": b"GET",
    "a head without an end": _REQUEST,
    "a body of a signed address": b"POST /v1/sealed HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc",
    "a body of an answered one": _REQUEST + b"Content-Length: 100000\r\n\r\nabc",
    "an answer, and then nothing": HEALTH,
}


def _half_open(stranger: Stranger, limits: Limits) -> Found:
    """Handshakes, heads and bodies that are begun and never ended, and one that trickles."""
    each = min(15, limits.connections_per_address // (len(_BEGUN) + 5))
    longest_s = max(limits.header_s, float(limits.idle_s), limits.stall_s)
    with ExitStack() as held:
        connections = []
        for begun in _BEGUN.values():
            for _ in range(each):
                connections.append(held.enter_context(stranger.dial()))
                pour(connections[-1], [begun] if begun else [])
        bare = [held.enter_context(stranger.bare()) for _ in range(2 * each)]
        for one in bare[:each]:
            one.sendall(b"\x16\x03\x01")
        slow = held.enter_context(stranger.dial())
        trickled = _trickled(slow, limits.header_s + _SLACK_S)
        closed = closed_within([*connections, *bare], longest_s + _SLACK_S)
    left = len(connections) + len(bare) - closed + (not trickled)
    return Found(left > 0, left)


def _trickled(slow: ssl.SSLSocket, within_s: float) -> bool:
    """Return whether a head that comes a line at a time is cut off."""
    until_s = time.monotonic() + within_s
    with suppress(OSError):
        slow.sendall(_REQUEST)
        while time.monotonic() < until_s:
            slow.sendall(b"a: b\r\n")
            time.sleep(0.05)
        return False
    return True


_NO_PARTY_SENDS: Final = (
    (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (b"GET /healthz?" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (_REQUEST + b"x: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    (_REQUEST + b"a: b\r\n" * 100 + b"\r\n", 431),
    (b"POST /v1/studies HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
    (_REQUEST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    (b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"nonsense\r\n\r\n", 400),
    (HEALTH + HEALTH, 0),
)


def _no_party_sends(stranger: Stranger, limits: Limits) -> Found:
    """Requests that are refused before anybody looks at who asks."""
    got = [(sent, _status(stranger, sent), status) for sent, status in _NO_PARTY_SENDS]
    return found([f"{sent[:24]!r}: {answered}" for sent, answered, status in got if answered != status])


def _status(stranger: Stranger, sent: bytes) -> int:
    """The answer's status; 0 when the server closes without a word, -1 when the body is no problem of that status."""
    status, body = stranger.ask(sent)
    if status < 400:
        return status
    return status if json.loads(body).get("status") == status else -1


def _one_address(stranger: Stranger, limits: Limits) -> Found:
    """Connections of one address, as many as it can hold, while another one asks."""
    wanted = limits.connections_per_address + 12
    own = _FLOODING if stranger.local else None
    with ExitStack() as held:
        connections = [held.enter_context(stranger.bare(own)) for _ in range(wanted)]
        until(lambda: closed_within(connections, 0.05) >= wanted - limits.connections_per_address, 2.0)
        open_ = wanted - closed_within(connections, 0.05)
        answered = not stranger.local or _answered(stranger, _OTHER)
    beyond = max(0, open_ - limits.connections_per_address)
    notes = [] if answered else ["another address was not answered"]
    if not until(lambda: _answered(stranger, own)):
        notes.append("the address was not let in again once it had closed them")
    return Found(beyond > 0 or bool(notes), beyond, "; ".join(notes))


def _answered(stranger: Stranger, source: str | None) -> bool:
    with suppress(OSError):
        return stranger.ask(HEALTH, source)[0] == 200
    return False


def _few_addresses(folder: Path) -> Found:
    """Connections of two addresses, as many as a server has in all, idle before TLS or after an answer."""
    given = {**_NARROW, "idle_s": 600, "header_s": 600.0}
    with server_with(folder, given) as stranger, ExitStack() as held:
        holding: list[socket.socket] = []
        for number in range(Limits.model_validate(given).connections):
            source = (_FLOODING, _OTHER)[number % 2]
            holding.append(held.enter_context(stranger.dial(source) if number % 4 else stranger.bare(source)))
            if isinstance(holding[-1], ssl.SSLSocket) and not _asked(holding[-1]):
                raise Unavailable("the server did not take as many connections as it may have")
        kept_out = sum(not _let_in(stranger, held) for _ in range(2))
        ended = bool(kept_out) or until(lambda: closed_within(holding, 0.05) >= 2)
    return Found(kept_out > 0 or not ended, kept_out, "" if ended else "who made room was not disconnected")


def _let_in(stranger: Stranger, held: ExitStack) -> bool:
    with suppress(OSError):
        return _asked(held.enter_context(stranger.dial(_THIRD)))
    return False


def _asked(connection: ssl.SSLSocket) -> bool:
    connection.sendall(HEALTH)
    return answer(connection)[0] == 200


def _without_end(stranger: Stranger, limits: Limits) -> Found:
    """Requests that nobody signed, one after the other on one connection."""
    worth = int(10 * limits.unsigned_per_s)
    answered = 0
    with suppress(OSError), stranger.dial(_FLOODING if stranger.local else None) as connection:
        while answered < 3 * worth and _asked(connection):
            answered += 1
    return Found(answered >= 3 * worth, max(0, answered - worth))


def _attempt(at: At, without: Mapping[str, object], limits: Mapping[str, object]) -> Attempt:
    def running(place: Deployment) -> Found:
        return at(Stranger(place.url(Side.B), place.ca_file), Limits())

    return Attempt(partial(_on_own_server, at, limits), without, running)


_ANY_RATE: Final[Mapping[str, object]] = {"servers.api.admission.Allowance.take": lambda *_: True}
_OF_STRANGERS: Final = {
    "connections-half-open": _attempt(_half_open, {"servers.api.listener.BoundedHttp._within": passes}, _ROOMY),
    "requests-that-no-party-sends": _attempt(
        _no_party_sends, {"servers.api.listener.BoundedHttp._stop": passes}, _ROOMY
    ),
    "connections-of-one-address": _attempt(
        _one_address, {"servers.api.admission.Admission.has_room": lambda *_: True, **_ANY_RATE}, _NARROW
    ),
    "connections-of-few-addresses": Attempt(
        _few_addresses, {"servers.api.admission.Shares.given_up_for": lambda *_, **__: None}
    ),
    "requests-without-end": _attempt(_without_end, _ANY_RATE, _NARROW),
}


# --- requests that need no more than one site's keys; refused, they leave nothing behind ------------------------------

Ask: TypeAlias = Callable[[SignedClient, str], list[httpx.Response]]
"""Requests that need no more than a site's keys and the name of a study. -> what both servers answer"""


def _taken(ask: Ask, client: SignedClient, study: str) -> Found:
    taken = sum(answer.is_success for answer in ask(client, study))
    return Found(taken > 0, taken)


def _on_own_pair(ask: Ask, folder: Path) -> Found:
    with pair_in_memory(folder) as pair:
        sites = pair.new_study(SMALL)
        return _taken(ask, sites.clients[VICTIM], sites.study.name)


def _on_running_pair(ask: Ask, place: Deployment) -> Found:
    with closing(SignedClient(place, place.own)) as client:
        return _taken(ask, client, place.study)


def _view(client: SignedClient, study: str, side: Side, created: int | None = None) -> Outgoing:
    return client.enclose(side, "GET", paths.fill(paths.VIEW, study=study), created=created)


def _in_anothers_name(client: SignedClient, study: str) -> list[httpx.Response]:
    other = next(site.name for site in client.federation.roster.sites if site.name != client.keys.name)
    pretended = replace(forgeries.impostor(client.keys, secrets.token_bytes(32)), name=other)
    with closing(SignedClient(client.federation, pretended)) as forged:
        return [_believed(forged, _view(forged, study, side)) for side in Side]


def _believed(forged: SignedClient, asked: Outgoing) -> httpx.Response:
    """A server that believes it seals its answer to the site whose name was taken."""
    try:
        return forged.post(asked)
    except BrokenSeal:
        return httpx.Response(httpx.codes.OK)


def _replayed(client: SignedClient, study: str) -> list[httpx.Response]:
    asked = [_view(client, study, side) for side in Side]
    for one in asked:
        client.post(one)
    return [client.post(one) for one in asked]


def _delayed(client: SignedClient, study: str) -> list[httpx.Response]:
    then = int(client.federation.clock.now()) - 3600
    return [client.post(_view(client, study, side, then)) for side in Side]


def _long_letter(client: SignedClient, study: str) -> list[httpx.Response]:
    path = paths.fill(paths.MAIL, study=study, topic="refusal", recipient=client.federation.roster.requester)
    return [client.send(Side.A, "PUT", path, bytes(2**20))]


def _anywhere(ask: Ask, without: Mapping[str, object]) -> Attempt:
    return Attempt(partial(_on_own_pair, ask), without, partial(_on_running_pair, ask))


_OF_A_SITE: Final = {
    "request-in-anothers-name": _anywhere(_in_anothers_name, NO_SIGNATURE_COUNTS),
    "request-replayed": _anywhere(_replayed, {"servers.store.sql.SqlStore.remember_nonce": passes}),
    "request-delayed": _anywhere(
        _delayed, {"protocol.channel.signing.require_time": passes, "servers.identity.sessions.require_time": passes}
    ),
    "letter-of-a-megabyte": _anywhere(_long_letter, ANY_LETTER),
}
ATTEMPTS: Final = {**_OF_STRANGERS, **_OF_A_SITE}
