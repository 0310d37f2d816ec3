"""Costs of a federation of processes, from the agents' ledgers and the servers' /metrics pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from client_agent.net.ledger import LedgerEntry, read_ledger
from harness.engine.history import RunHistory
from harness.federation.processes import RunningFederation
from protocol.sharing import Side

_CONTRIBUTION: Final = "contribution"
_OUTPUT: Final = "output"


@dataclass(frozen=True)
class Traffic:
    """Bytes of a whole federation, divided by the rounds in which contributors took part.

    ``up`` and ``down`` count every byte at the contributors' sockets: TLS, HTTP headers, polls and handshakes
    included. The ``body`` figures count the sealed shares and outputs alone. Between the servers both directions are
    counted, as bodies, correlations made ahead but not used included.
    """

    contributor_rounds: int
    parameters: int
    up_bytes: int
    down_bytes: int
    up_body_bytes: int
    down_body_bytes: int
    between_servers_bytes: int
    tls_versions: tuple[str, ...]
    lock_to_release_s: float | None

    @property
    def up_per_parameter(self) -> float:
        return self._per(self.up_bytes, self.contributor_rounds * self.parameters)

    @property
    def down_per_parameter(self) -> float:
        return self._per(self.down_bytes, self.contributor_rounds * self.parameters)

    @property
    def up_body_per_parameter(self) -> float:
        return self._per(self.up_body_bytes, self.contributor_rounds * self.parameters)

    @property
    def down_body_per_parameter(self) -> float:
        return self._per(self.down_body_bytes, self.contributor_rounds * self.parameters)

    @property
    def between_servers_per_contributor_round(self) -> float:
        return self._per(self.between_servers_bytes, self.contributor_rounds)

    @staticmethod
    def _per(total: int, count: int) -> float:
        return total / count if count else float("nan")


def measure(federation: RunningFederation, histories: Sequence[RunHistory], parameters: int) -> Traffic:
    """The traffic of everything that ``federation`` has run, which are the given histories."""
    contributors = [site.name for site in federation.spec.sites if site.name != federation.spec.requester]
    entries = [entry for name in contributors for entry in read_ledger(federation.ledger(name))]
    everybody = [*entries, *read_ledger(federation.ledger(federation.spec.requester))]
    page = federation.metrics(Side.A)
    count, seconds = _sample(page, "moiety_phase_seconds_count", "lock_to_release"), None
    if count:
        seconds = _sample(page, "moiety_phase_seconds_sum", "lock_to_release") / count
    return Traffic(
        contributor_rounds=sum(len(record.took_part) for history in histories for record in history.rounds),
        parameters=parameters,
        up_bytes=sum(entry.socket_sent_bytes for entry in entries),
        down_bytes=sum(entry.socket_received_bytes for entry in entries),
        up_body_bytes=sum(entry.body_sent_bytes for entry in _for(entries, _CONTRIBUTION)),
        down_body_bytes=sum(entry.body_received_bytes for entry in _for(entries, _OUTPUT)),
        between_servers_bytes=int(_sample(page, "moiety_peer_bytes_total")),
        tls_versions=tuple(sorted({entry.tls_version for entry in everybody if entry.tls_version})),
        lock_to_release_s=seconds,
    )


def _for(entries: Sequence[LedgerEntry], purpose: str) -> list[LedgerEntry]:
    return [entry for entry in entries if entry.purpose == purpose]


def _sample(page: str, name: str, phase: str | None = None) -> float:
    """The sum of a metric's samples, of one phase if given."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and (phase is None or sample.labels.get("phase") == phase)
    )
