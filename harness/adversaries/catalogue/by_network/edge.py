"""Strangers without a key at a server's public port: what they begin and do not end, and what is too much.

A real server on a loopback port in this process, with short times; or one that runs somewhere, with its own.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.outside import DeployedAttack, Deployment
from harness.adversaries.raw_connections import HEALTH, Stranger, answer, closed_within, pour, until
from harness.adversaries.scripted.edge import server_with
from protocol.errors import Unavailable
from protocol.sharing import Side
from servers.settings import Limits

_REQUEST: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
_TIMES: Final = {"header_s": 0.5, "handshake_s": 0.5, "idle_s": 1, "stall_s": 0.5}
_ROOMY: Final = {"connections_per_address": 512, "unsigned_per_s": 1000.0}
_NARROW: Final = {"connections": 16, "connections_per_address": 8, "unsigned_per_s": 2.0}
_SLACK_S: Final = 2.0
_EACH: Final = 15
_FLOODING, _OTHER, _THIRD = "127.0.1.1", "127.0.1.2", "127.0.1.3"


class AtTheEdge(DeployedAttack):
    """Bytes on sockets, without a key."""

    party = Party.STRANGER
    _limits: Mapping[str, object] = {**_TIMES, **_ROOMY}

    def attempt(self, folder: Path) -> Found:
        with server_with(folder, self._limits) as stranger:
            return self.at(stranger, Limits.model_validate(self._limits))

    def on(self, place: Deployment) -> Found:
        return self.at(Stranger(place.url(Side.B), place.ca_file), Limits())

    @abstractmethod
    def at(self, stranger: Stranger, limits: Limits) -> Found:
        """Against server B, which has these limits."""


class HalfOpen(AtTheEdge):
    """Handshakes, heads and bodies that are begun and never ended, and one that trickles."""

    name = "connections-half-open"
    tries = "holds connections by handshakes, heads and bodies that it begins and never ends, or ends very slowly"
    defence = "a time for the handshake, for a head, for a body's least speed, and between two requests"
    figure = "connections still open when their time is over"
    without: Mapping[str, object] = {"servers.http.bounded_http.BoundedHttp._within": passes}
    _begun: Mapping[str, bytes] = {
        "nothing": b"",
        "a newline": b"\r\n",
        "a method": b"GET",
        "a head without an end": _REQUEST,
        "a body of a signed address": b"POST /v1/sealed HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc",
        "a body of an answered one": _REQUEST + b"Content-Length: 100000\r\n\r\nabc",
        "an answer, and then nothing": HEALTH,
    }

    def at(self, stranger: Stranger, limits: Limits) -> Found:
        each = min(_EACH, limits.connections_per_address // (len(self._begun) + 5))
        longest_s = max(limits.header_s, limits.handshake_s, float(limits.idle_s), limits.stall_s)
        with ExitStack() as held:
            connections = []
            for begun in self._begun.values():
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
    """Whether a head that comes a line at a time is cut off."""
    until_s = time.monotonic() + within_s
    with suppress(OSError):
        slow.sendall(_REQUEST)
        while time.monotonic() < until_s:
            slow.sendall(b"a: b\r\n")
            time.sleep(0.05)
        return False
    return True


class NoPartySends(AtTheEdge):
    """Requests that are refused before anybody looks at who asks."""

    name = "requests-that-no-party-sends"
    tries = "sends long addresses and headers, chunks, upgrades, tunnels, nonsense, and two requests at once"
    defence = "bounds on a request's head that hold before anything else is read"
    figure = "requests that were not refused as they should be"
    without: Mapping[str, object] = {"servers.http.bounded_http.BoundedHttp._stop": passes}
    _sent: tuple[tuple[bytes, int], ...] = (
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

    def at(self, stranger: Stranger, limits: Limits) -> Found:
        wrong = [f"{sent[:24]!r}: {got}" for sent, status in self._sent if (got := _status(stranger, sent)) != status]
        return Found(bool(wrong), len(wrong), "; ".join(wrong))


def _status(stranger: Stranger, sent: bytes) -> int:
    """What the server answers; 0 when it closes without a word, -1 when the body is no problem of that status."""
    status, body = stranger.ask(sent)
    if status < 400:
        return status
    return status if json.loads(body).get("status") == status else -1


class OneAddress(AtTheEdge):
    """Connections of one address, as many as it can hold, while another one asks."""

    name = "connections-of-one-address"
    tries = "takes all of a server's connections from one address"
    defence = "a number of connections for each address, below the number in all"
    figure = "connections beyond those that an address may have"
    without: Mapping[str, object] = {
        "servers.http.admission.Admission._room": lambda *_: True,
        "servers.http.admission.Allowance.take": lambda *_: True,
    }
    _limits: Mapping[str, object] = {**_NARROW}

    def at(self, stranger: Stranger, limits: Limits) -> Found:
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


class FewAddresses(Attack):
    """Connections of two addresses, as many as a server has in all, idle before TLS or after an answer."""

    name = "connections-of-few-addresses"
    party = Party.STRANGER
    tries = "takes all of a server's connections from as many addresses as that needs, and leaves them idle"
    defence = "where all are open, the address with most of those that nobody signed gives an idle one up"
    figure = "of two connections of another address, those that were kept out"
    without: Mapping[str, object] = {"servers.http.admission.Shares.given_up_for": lambda *_, **__: None}
    _limits: Mapping[str, object] = {**_NARROW, "idle_s": 600, "handshake_s": 600.0}

    def attempt(self, folder: Path) -> Found:
        limits = Limits.model_validate(self._limits)
        with server_with(folder, self._limits) as stranger, ExitStack() as held:
            holding: list[socket.socket] = []
            for number in range(limits.connections):
                source = (_FLOODING, _OTHER)[number % 2]
                holding.append(held.enter_context(stranger.dial(source) if number % 4 else stranger.bare(source)))
                if isinstance(holding[-1], ssl.SSLSocket) and not _asked(holding[-1]):
                    raise Unavailable("the server did not take as many connections as it may have")
            kept_out = sum(not self._let_in(stranger, held) for _ in range(2))
            ended = bool(kept_out) or until(lambda: closed_within(holding, 0.05) >= 2)
        return Found(kept_out > 0 or not ended, kept_out, "" if ended else "who made room was not disconnected")

    def _let_in(self, stranger: Stranger, held: ExitStack) -> bool:
        with suppress(OSError):
            return _asked(held.enter_context(stranger.dial(_THIRD)))
        return False


def _asked(connection: ssl.SSLSocket) -> bool:
    """Whether it is answered."""
    connection.sendall(HEALTH)
    return answer(connection)[0] == 200


class WithoutEnd(AtTheEdge):
    """Requests that nobody signed, one after the other on one connection."""

    name = "requests-without-end"
    tries = "asks again and again without a signature"
    defence = "a rate of unsigned requests for each address"
    figure = "unsigned requests answered beyond ten seconds' worth"
    without: Mapping[str, object] = {"servers.http.admission.Allowance.take": lambda *_: True}
    _limits: Mapping[str, object] = {**_NARROW}

    def at(self, stranger: Stranger, limits: Limits) -> Found:
        worth = int(10 * limits.unsigned_per_s)
        answered = 0
        with suppress(OSError), stranger.dial(_FLOODING if stranger.local else None) as connection:
            while answered < 3 * worth:
                connection.sendall(HEALTH)
                if answer(connection)[0] != 200:
                    break
                answered += 1
        beyond = max(0, answered - worth)
        return Found(answered >= 3 * worth, beyond)


def floods_at_the_edge() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return HalfOpen(), NoPartySends(), OneAddress(), FewAddresses(), WithoutEnd()
