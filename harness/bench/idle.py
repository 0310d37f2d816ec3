"""``moiety bench idle``: what an agent without a study sends, receives and notes in a day, after studies that ended.

Two servers and one contributor's agent as processes on loopback, TLS included. The studies were created and ended
before the agent starts; once it has heard of them, its ledger is read at both ends of a window, and the window's
exchanges are repeated for a day into a ledger of their own, whose files are measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from client_agent.network.ledger import Ledger, LedgerEntry, read_ledger
from client_agent.network.server_client import ServerClient
from client_agent.network.transport import CountingTransport, tls_context
from harness.bench.latency import small_federation, small_study
from harness.bench.processes import ServersOnly
from harness.bench.results import Benchmark, facts, scratch
from harness.federation.processes import RunningFederation
from protocol.messages.control import EndCause, Signed, Study, StudyEnd, StudyEndState, sign
from protocol.sharing import Side

DAY_S: Final = 86400.0
_CONTRIBUTORS: Final = 3
_AGENT: Final = "site-1"
_SETTLED_S: Final = 25.0
_MIDNIGHT_S: Final = 1_800_000_000.0


class IdleBenchmark(Benchmark):
    """Bytes are those at the socket, TLS included; ``ledger_bytes_per_day`` is what a day leaves on the disk."""

    past_studies: int
    seconds: float
    requests_per_day: float
    bytes_up_per_day: float
    bytes_down_per_day: float
    ledger_bytes_per_day: float
    requests_by_purpose: dict[str, int]


def benchmark_idle(past_studies: int, seconds: float, folder: Path | None = None) -> IdleBenchmark:
    """Count for so many seconds. Raises: Unavailable, when a process ends"""
    with scratch(folder) as place:
        with ServersOnly(small_federation(_CONTRIBUTORS), place / "idle") as federation:
            _create_and_end(federation, past_studies)
            _look_as_often_as_usual(federation.config(_AGENT))
            federation.start_agent(_AGENT)
            time.sleep(_SETTLED_S)
            window = _window(federation.ledger(_AGENT), seconds)
        noted_bytes = a_day_on_disk(window, seconds, place / "day")
    return summary(window, past_studies, seconds, noted_bytes)


def summary(
    window: Sequence[LedgerEntry], past_studies: int, seconds: float, ledger_bytes_per_day: float
) -> IdleBenchmark:
    """The window's exchanges, as many a day as there would be."""
    days = seconds / DAY_S
    return IdleBenchmark(
        **facts(f"idle --past-studies {past_studies} --seconds {seconds:g}"),
        past_studies=past_studies,
        seconds=seconds,
        requests_per_day=sum(entry.count for entry in window) / days,
        bytes_up_per_day=sum(entry.socket_sent_bytes for entry in window) / days,
        bytes_down_per_day=sum(entry.socket_received_bytes for entry in window) / days,
        ledger_bytes_per_day=ledger_bytes_per_day,
        requests_by_purpose=dict(Counter(entry.purpose for entry in window)),
    )


def a_day_on_disk(window: Sequence[LedgerEntry], seconds: float, folder: Path) -> float:
    """Bytes of a ledger's files after a day of such windows, from one midnight to the next."""
    folder.mkdir(parents=True)
    ledger = Ledger(folder / "ledger.jsonl")
    for number in range(int(DAY_S / seconds)):
        for place, entry in enumerate(window):
            at_s = _MIDNIGHT_S + seconds * (number + place / len(window))
            ledger.append(entry.model_copy(update={"time_s": at_s}))
    ledger.close()
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def _window(ledger: Path, seconds: float) -> list[LedgerEntry]:
    """Return what is appended to a ledger in so many seconds."""
    before = len(read_ledger(ledger))
    time.sleep(seconds)
    return list(read_ledger(ledger)[before:])


def _look_as_often_as_usual(config: Path) -> None:
    """Federations on loopback look for studies more often than an agent is told to."""
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("poll_s")), encoding="utf-8")


def _create_and_end(federation: RunningFederation, count: int) -> None:
    """So many studies at both servers, over before anybody joined."""
    roster = federation.parties.roster.message
    keys = federation.parties.keys_of(roster.requester)
    ledger = Ledger(federation.folder / "requester.jsonl")
    context = tls_context(federation.ca_file)
    for side in Side:
        operator = roster.operator(side)
        client = ServerClient(side, operator, keys, CountingTransport(operator.name, context, ledger))
        for number in range(count):
            study = _past_study(roster.digest(), number)
            client.create_study(sign(study, keys.name, keys.signing))
            client.end(study.name, _end(study, keys.name, federation))
        client.close()
    ledger.close()


def _past_study(roster_digest: str, number: int) -> Study:
    return small_study(roster_digest, 3).model_copy(update={"name": f"past-{number:03d}"})


def _end(study: Study, requester: str, federation: RunningFederation) -> Signed[StudyEnd]:
    end = StudyEnd(
        study_digest=study.digest(), state=StudyEndState.COMPLETED, cause=EndCause.ALL_ROUNDS_DONE, reason="done"
    )
    return sign(end, requester, federation.parties.keys_of(requester).signing)


def idle_text(result: IdleBenchmark) -> str:
    """The figures, one a line."""
    purposes = ", ".join(f"{count} {purpose}" for purpose, count in sorted(result.requests_by_purpose.items()))
    return "\n".join(
        (
            f"an agent without a study, {result.past_studies} past ones, {result.seconds:g} s on {result.machine}",
            f"exchanges: {purposes or 'none'}; {result.requests_per_day:,.0f} a day",
            f"MB a day: up {result.bytes_up_per_day / 1e6:.2f}, down {result.bytes_down_per_day / 1e6:.2f}",
            f"ledger, MB a day: {result.ledger_bytes_per_day / 1e6:.3f}",
        )
    )
