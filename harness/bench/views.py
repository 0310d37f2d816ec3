"""What one request costs in an envelope and bare, over HTTPS to a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx
import numpy as np

from client_agent.network.ledger import Ledger
from client_agent.network.server_client import ServerClient
from client_agent.network.transport import CountingTransport, tls_context
from harness.bench import probe
from harness.bench.envelope_results import RequestCost, Spread, ViewCost
from harness.bench.view_server import BARE
from harness.engine.parties import OPERATOR_NAMES, Parties
from harness.federation.processes import RunningFederation
from protocol.errors import Unavailable
from protocol.parameters import Needs
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import countersign, sign
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    Message,
    RoundState,
    RoundView,
    Signed,
    StudyView,
)

M = TypeVar("M", bound=Message)
_PROJECT: Final = Path(__file__).resolve().parents[2]
_READY_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05
_CLOSES_AT_S: Final = 2_000_000_000


@dataclass(frozen=True)
class _Used:
    """What one request took: server's and agent's CPU milliseconds, bytes up and down."""

    figures: tuple[float, float, float, float]

    def minus(self, other: _Used) -> _Used:
        server, agent, up, down = np.subtract(self.figures, other.figures).tolist()
        return _Used((server, agent, up, down))


def measure_views(federation: RunningFederation, sizes: tuple[int, ...], requests: int, repeats: int) -> list[ViewCost]:
    """For views of so many sites; of ``federation``, which is not started, the requester asks server A.

    Raises: Unavailable, when the server's process ends or does not answer
    """
    folder = federation.folder / "views"
    folder.mkdir()
    views = {f"view-{sites}": made_view(federation.parties, sites).canonical() for sites in sizes}
    for name, view in views.items():
        (folder / name).write_bytes(view)
    settings = federation.config(OPERATOR_NAMES[Side.A])
    with _serving(settings, folder) as process:
        asker = _Asker(federation, process.pid)
        try:
            asker.wait_until_served(process, next(iter(views)))
            return [
                _measure(asker, name, sites, len(view), requests, repeats)
                for (name, view), sites in zip(views.items(), sizes, strict=True)
            ]
        finally:
            asker.close()


def _measure(asker: _Asker, name: str, sites: int, length: int, requests: int, repeats: int) -> ViewCost:
    """Enveloped and bare in turns, after one turn that does not count."""
    turns = [
        (asker.used(asker.enveloped, name, requests), asker.used(asker.bare, name, requests))
        for _ in range(repeats + 1)
    ][1:]
    return ViewCost(
        sites=sites,
        view_bytes=length,
        enveloped=_cost([enveloped for enveloped, _ in turns]),
        bare=_cost([bare for _, bare in turns]),
        added=_cost([enveloped.minus(bare) for enveloped, bare in turns]),
    )


def _cost(repeats: list[_Used]) -> RequestCost:
    server, agent, up, down = (Spread.of(values) for values in zip(*(one.figures for one in repeats), strict=True))
    return RequestCost(server_ms=server, agent_ms=agent, bytes_up=up, bytes_down=down)


class _Asker:
    """One site's connection, with every byte counted, and the CPU clocks of both ends."""

    def __init__(self, federation: RunningFederation, pid: int) -> None:
        self._pid = pid
        self._url = federation.url(Side.A)
        site = federation.spec.requester
        operator = federation.parties.roster.message.operator(Side.A)
        keys = federation.parties.keys_of(site)
        self._ledger = Ledger(federation.folder / "views.jsonl")
        context = tls_context(federation.ca_file)
        transports = [CountingTransport(operator.name, context, self._ledger) for _ in range(2)]
        self._client = ServerClient(Side.A, operator, keys, transports[0])
        self._http = httpx.Client(transport=transports[1], trust_env=False, timeout=30.0)

    def enveloped(self, name: str) -> None:
        self._client.view(name)

    def bare(self, name: str) -> None:
        answer = self._http.get(self._url + BARE + paths.fill(paths.VIEW, study=name))
        StudyView.parse(answer.raise_for_status().content)

    def used(self, ask: Callable[[str], None], name: str, requests: int) -> _Used:
        """The mean over so many requests, one after the other."""
        moved, served, asked = self._ledger.totals, probe.cpu_ns(self._pid), time.process_time_ns()
        for _ in range(requests):
            ask(name)
        agent, server, after = time.process_time_ns() - asked, probe.cpu_ns(self._pid) - served, self._ledger.totals
        up = after.socket_sent_bytes - moved.socket_sent_bytes
        down = after.socket_received_bytes - moved.socket_received_bytes
        return _Used((server / requests / 1e6, agent / requests / 1e6, up / requests, down / requests))

    def wait_until_served(self, process: subprocess.Popen[bytes], name: str) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self.bare(name)
            except httpx.TransportError:
                time.sleep(_LOOK_S)
            else:
                return
        raise Unavailable(f"benchmark: nothing answers at {self._url}; the process that should is at {process.poll()}")

    def close(self) -> None:
        self._client.close()
        self._http.close()
        self._ledger.close()


@contextmanager
def _serving(settings: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "harness.bench.view_server", str(settings), str(folder)], cwd=_PROJECT
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def made_view(parties: Parties, sites: int) -> StudyView:
    """A view right after the lock: every one of so many sites is ready, listed and in the agreed set."""
    names = tuple(f"site-{number}" for number in range(1, sites + 1))
    digest = "5a" * 32
    announcement = Announcement(
        study_digest=digest,
        round=1,
        listed=names,
        least_contributors=2,
        opens=Needs.DISTANCES,
        model_version=0,
        model_digest=digest,
        weight_list_digest=digest,
        closes_at_s=_CLOSES_AT_S,
    )
    held = tuple(
        CollectedContribution(site=name, announcement_digest=digest, commitment_a=digest, commitment_b=digest)
        for name in names
    )
    agreed = AgreedSet(
        study_digest=digest, round=1, attempt=1, announcement_digest=announcement.digest(), contributions=held
    )
    transcript = ChallengeTranscript(
        agreed_set_digest=agreed.digest(), commitment_a=digest, nonce_b=digest, nonce_a=digest, challenge=digest
    )
    requester = parties.roster.message.requester
    current = RoundView(
        round=1,
        attempt=1,
        state=RoundState.LOCKED,
        announcement=_signed(parties, announcement, requester, OPERATOR_NAMES[Side.A]),
        agreed_set=_signed(parties, agreed, *OPERATOR_NAMES.values()),
        transcript=_signed(parties, transcript, *OPERATOR_NAMES.values()),
    )
    mail = (f"weights-1/{requester}",)
    return StudyView(study="view", study_digest=digest, cursor=1, ready=names, mail=mail, current=current)


def _signed(parties: Parties, message: M, *names: str) -> Signed[M]:
    signed = sign(message, names[0], parties.keys_of(names[0]).signing)
    for name in names[1:]:
        signed = countersign(signed, name, parties.keys_of(name).signing)
    return signed
