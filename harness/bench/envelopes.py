"""What signing and sealing add: to one request, measured, and to a round, by the requests that real agents make.

Requests are counted in a whole study over real processes, from the first round's end to the last one's: what a study
needs once, at its beginning and end, is left out, and so is what an agent asks every so many seconds, rounds or not.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from client_agent.network.ledger import CONNECTION, HANDSHAKE, LedgerEntry, read_ledger, without_number
from client_agent.site.events import RoundEnd
from harness.bench import probe
from harness.bench.envelope_results import ControlTraffic, EnvelopesBenchmark
from harness.bench.latency.run import run_small_study, small_federation
from harness.bench.views import measure_views
from harness.federation.processes import RunningFederation
from harness.versions import versions
from harness.warm import warm
from protocol.errors import ProtocolViolation
from protocol.sharing import Side

VIEW_SITES: Final = (10, 1000)
_BY_THE_CLOCK: Final = "list studies"
_NO_CONTROL: Final = frozenset({"contribution", "output", _BY_THE_CLOCK, HANDSHAKE, CONNECTION})
_CHECKPOINT: Final = "mail checkpoint"
_REQUESTER: Final = "the requester"
_CONTRIBUTOR: Final = "a contributor"


def benchmark_envelopes(
    sites: int, rounds: int, requests: int, repeats: int, folder: Path | None = None
) -> EnvelopesBenchmark:
    """Both, one after the other; ``rounds`` are counted, after a first one that is not.

    Raises: Unavailable, when a process ends; ProtocolViolation, when a round released nothing
    """
    warm()
    load, _, _ = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name:
        views = measure_views(
            RunningFederation(small_federation(1), Path(name, "views")), VIEW_SITES, requests, repeats
        )
        control = _counted(Path(name, "study"), sites, rounds)
    return EnvelopesBenchmark(
        sites=sites,
        rounds=rounds,
        requests=requests,
        repeats=repeats,
        command=f"moiety bench envelopes --sites {sites} --rounds {rounds} --requests {requests} --repeats {repeats}",
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        load=load,
        views=tuple(views),
        control=control,
        versions={one.name: one.version for one in versions()},
    )


def _counted(folder: Path, sites: int, rounds: int) -> tuple[ControlTraffic, ...]:
    """A Weight Erosion study of ``rounds`` rounds after the first."""
    with RunningFederation(small_federation(sites), folder) as federation:
        run = run_small_study(federation, 1 + rounds)
        ended = [record.state for record in run.records]
        if ended != [RoundEnd.RELEASED] * (1 + rounds):
            raise ProtocolViolation(f"benchmark: every round should release a sum, they ended as {ended}")
        between = run.records[0].time_s, run.records[-1].time_s
        roster = federation.parties.roster.message
        contributors = [party.name for party in roster.contributors]
        found = []
        for who, names in ((_CONTRIBUTOR, contributors), (_REQUESTER, [roster.requester])):
            ledgers = [read_ledger(federation.ledger(name)) for name in names]
            for side in Side:
                entries = [
                    entry
                    for ledger in ledgers
                    for entry in ledger
                    if entry.server == roster.operator(side).name and between[0] < entry.time_s <= between[1]
                ]
                found.append(control_traffic(who, side, entries, len(names) * rounds))
    return tuple(found)


def control_traffic(who: str, side: Side, entries: Sequence[LedgerEntry], site_rounds: int) -> ControlTraffic:
    """The entries that are requests of control messages, divided by the sites and rounds that made them."""
    control = [e for e in entries if e.purpose not in _NO_CONTROL and not e.purpose.startswith(_CHECKPOINT)]
    kinds = Counter[str]()
    for entry in control:
        kinds[without_number(entry.purpose)] += entry.count
    return ControlTraffic(
        who=who,
        side=side,
        requests=kinds.total() / site_rounds,
        bytes_up=sum(entry.socket_sent_bytes for entry in control) / site_rounds,
        bytes_down=sum(entry.socket_received_bytes for entry in control) / site_rounds,
        requests_by_purpose={kind: count / site_rounds for kind, count in kinds.most_common()},
    )
