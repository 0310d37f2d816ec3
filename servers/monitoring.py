"""Monitoring for an operator: metrics, traffic, phases of rounds, and recent events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import ErrorCode
from protocol.messages.control import RoundState
from protocol.rounds.states import FINAL_STATES
from protocol.text import printable

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PHASE_BUCKETS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
_DIRECTIONS: Final = ("in", "out")


class Metrics:
    """One registry per server, so that two servers in one process do not share it.

    Every counter whose labels are known beforehand begins at 0: one that is born at its first event stands at 1 when
    it is first seen, and no increase is ever seen by an alert.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        kinds = ["direction", "kind"]
        self.rounds = counter("moiety_rounds", "Rounds ended", ["outcome"])
        self.phase_s = Histogram(
            "moiety_phase_seconds",
            "Duration of a round's phases",
            ["phase"],
            buckets=_PHASE_BUCKETS,
            registry=self.registry,
        )
        self.bytes = counter("moiety_bytes", "Bytes of bodies by kind of message", kinds)
        self.peer_bytes = counter("moiety_peer_bytes", "Bytes of bodies between the servers", kinds)
        self.correlations = counter("moiety_correlations", "Correlations made and used", ["event"])
        self.pool = gauge("moiety_correlations_in_pool", "Unused correlations in memory")
        self.connections = gauge("moiety_connections", "Open connections at the public port")
        self.connections_refused = counter("moiety_connections_refused", "Connections refused by number or rate")
        self.refusals = counter("moiety_refusals", "Requests refused", ["code"])
        self.ready = gauge("moiety_ready", "1 when /readyz was ready at the last look")
        self.disk_free_bytes = gauge("moiety_disk_free_bytes", "Free space at data_dir")
        self.disk_reserve_bytes = gauge("moiety_disk_reserve_bytes", "Free space below which nothing is accepted")
        self.certificate_expires_s = gauge(
            "moiety_certificate_expiry_seconds",
            "When the TLS certificate that is served expires, in seconds since 1970; 0 where none is known",
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        for code in ErrorCode:
            self.refusals.labels(code.value)
        for end in (*FINAL_STATES, RoundState.BURNT):
            self.rounds.labels(end.value)
        for event in ("made", "used"):
            self.correlations.labels(event)

    def expect_routes(self, of_sites: Iterable[str], of_the_peer: Iterable[str]) -> None:
        """The names of routes, which are kinds of traffic: their counters begin at 0 too."""
        for counter, kinds in ((self.bytes, of_sites), (self.peer_bytes, of_the_peer)):
            for kind in kinds:
                for direction in _DIRECTIONS:
                    counter.labels(direction, kind)

    def watch_disk(self, free_bytes: Callable[[], int], reserve_bytes: int) -> None:
        """``free_bytes`` is asked whenever somebody looks."""
        self.disk_free_bytes.set_function(free_bytes)
        self.disk_reserve_bytes.set(reserve_bytes)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


_KEPT: Final = 50
_KEPT_CHARACTERS: Final = 300


@dataclass
class PeerSeen:
    """When the other server's last sign of life came, since 1970, and by how much this clock was ahead of its then."""

    at_s: float | None = None
    ahead_s: float | None = None

    def saw(self, now_s: float, its_time_s: float | None) -> None:
        self.at_s = now_s
        if its_time_s is not None:
            self.ahead_s = now_s - its_time_s


@dataclass(frozen=True)
class Refused:
    """One request that was refused, in the words of the answer."""

    at_s: float
    code: ErrorCode
    detail: str


@dataclass
class Recent:
    """The last refusals, the peer, and when the requester last asked for anything, at first this start."""

    clock: Callable[[], float]
    peer: PeerSeen = field(default_factory=PeerSeen)
    requester_at_s: float = field(init=False)
    _refused: deque[Refused] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def __post_init__(self) -> None:
        self.requester_at_s = self.clock()

    def note_refusal(self, code: ErrorCode, detail: str) -> None:
        self._refused.append(Refused(self.clock(), code, printable(detail, _KEPT_CHARACTERS)))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The newest first."""
        return tuple(reversed(self._refused))


@dataclass(frozen=True, eq=False)
class Phases:
    """The marks of every study's current round; a study is named by its digest."""

    metrics: Metrics
    clock: Callable[[], float]
    _marks_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def mark(self, digest: str, event: str) -> None:
        """The event happens now, unless it has before."""
        self._marks_s.setdefault((digest, event), self.clock())

    def observe(self, digest: str, since: str, phase: str) -> None:
        """A phase that began at ``since`` is over; nothing where a restart lost the mark."""
        begun = self._marks_s.get((digest, since))
        if begun is not None:
            self.metrics.phase_s.labels(phase).observe(self.clock() - begun)

    def forget(self, digest: str) -> None:
        """The study's round is over."""
        for key in [key for key in self._marks_s if key[0] == digest]:
            del self._marks_s[key]


_PEER_PREFIX: Final = "/v1/peer/"


class CountTraffic:
    """ASGI middleware; routes of the peer are counted apart from those of the agents."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken, given = 0, 0

        async def counted_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal given
            given += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            counter = self._metrics.peer_bytes if scope["path"].startswith(_PEER_PREFIX) else self._metrics.bytes
            kind = getattr(scope.get("route"), "name", "unknown")
            counter.labels("in", kind).inc(taken)
            counter.labels("out", kind).inc(given)
