"""Metrics for an operator's monitoring: numbers about traffic and rounds, nothing about what is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from protocol.errors import ErrorCode
from protocol.messages.control import RoundState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PHASE_BUCKETS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
_ENDS: Final = (RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED, RoundState.BURNT)
_DIRECTIONS: Final = ("in", "out")


class Metrics:
    """One registry per server, so that two servers in one process do not share it.

    Every counter whose labels are known beforehand begins at 0: one that is born at its first event stands at 1 when
    it is first seen, and no increase is ever seen by an alert.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rounds = Counter("moiety_rounds", "Rounds ended", ["outcome"], registry=self.registry)
        self.phase_s = Histogram(
            "moiety_phase_seconds",
            "Duration of a round's phases",
            ["phase"],
            buckets=_PHASE_BUCKETS,
            registry=self.registry,
        )
        self.bytes = Counter(
            "moiety_bytes", "Bytes of bodies by kind of message", ["direction", "kind"], registry=self.registry
        )
        self.peer_bytes = Counter(
            "moiety_peer_bytes", "Bytes of bodies between the servers", ["direction", "kind"], registry=self.registry
        )
        self.correlations = Counter(
            "moiety_correlations", "Correlations made and used", ["event"], registry=self.registry
        )
        self.pool = Gauge("moiety_correlations_in_pool", "Unused correlations in memory", registry=self.registry)
        self.connections = Gauge("moiety_connections", "Open connections at the public port", registry=self.registry)
        self.connections_refused = Counter(
            "moiety_connections_refused", "Connections refused by number or rate", registry=self.registry
        )
        self.refusals = Counter("moiety_refusals", "Requests refused", ["code"], registry=self.registry)
        self.ready = Gauge("moiety_ready", "1 when /readyz was ready at the last look", registry=self.registry)
        self.disk_free_bytes = Gauge("moiety_disk_free_bytes", "Free space at data_dir", registry=self.registry)
        self.disk_reserve_bytes = Gauge(
            "moiety_disk_reserve_bytes", "Free space below which nothing is accepted", registry=self.registry
        )
        self.certificate_expires_s = Gauge(
            "moiety_certificate_expiry_seconds",
            "When the TLS certificate that is served expires, in seconds since 1970; 0 where none is known",
            registry=self.registry,
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        for code in ErrorCode:
            self.refusals.labels(code.value)
        for end in _ENDS:
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
