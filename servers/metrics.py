"""What an operator's monitoring sees; numbers about traffic and rounds, nothing about what is shared."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PHASE_BUCKETS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """One registry per server, so that two servers in one process do not share it."""

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

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
