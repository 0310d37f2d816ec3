"""Running servers under requests that nobody means, while other sites' study goes on: no crash, no 500, bounded memory.

Two thousand and a half in every test run, 100,000 and more in ``make soak``, with 1,000 unfinished uploads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client_agent.learning.learner import Learner, Vector
from client_agent.settings import AgentSettings
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import SignedClient
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.learners import Odd, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import Announcement, RuleName, RuleSpec, Study
from protocol.sharing import Side
from tests.fuzz.counts import keep_counts
from tests.fuzz.requests import OF_PEERS, OF_SITES, PLAYED, Counts, Members, Strangers
from tests.fuzz.uploads import KIND, Unfinished
from tests.integration.agents import journal, rounds_of, wait_for
from tests.kit.processes import Federation, resident_mb
from tests.ports import free_ports

REQUESTER, *HONEST, MALLORY = (f"hospital-{number}" for number in range(5))
STUDY = "honest"
WORKERS: Final = 4
PROBLEM: Final = {"type", "title", "status", "detail", "code"}
"""The keys of a refusal."""
MOST_GROWN_MB = 150.0
KEPT_EVERY_S: Final = 30.0
LIMITS = {
    "unsigned_per_s": 1e6,
    "connections_per_address": 900,
    "header_s": 1.0,
    "stall_s": 2.0,
    "idle_s": 5,
    "long_poll_s": 2.0,
}


@dataclass(frozen=True)
class FuzzedRequests:
    """``honest_rounds``: of another study meanwhile; ``data_mb``: left on the disk."""

    seed: int
    requests: int
    by_kind: dict[str, int]
    by_answer: dict[str, int]
    errors: tuple[str, ...]
    honest_rounds: int
    seconds: float
    grown_mb: float
    data_mb: float


@dataclass(frozen=True)
class Amounts:
    """Counts of requests, by kind."""

    whole: int
    spoiled: int
    site: int
    requester: int
    peer: int
    uploads: int
    described: int
    honest: bool


QUICK = Amounts(whole=160, spoiled=64, site=96, requester=32, peer=32, uploads=16, described=2, honest=False)
FULL = Amounts(
    whole=48_000, spoiled=18_000, site=22_000, requester=4_000, peer=4_000, uploads=1_000, described=30, honest=True
)


class Slow(Odd):
    """An honest study must go on, and need not take all of the machine."""

    def update(self, model: Vector, round_number: int) -> Vector:
        time.sleep(0.5)
        return super().update(model, round_number)


def slow_learner(settings: AgentSettings, study: Study, seed: int) -> Learner:
    """A light one that takes its time."""
    return cast(Learner, Slow(cast(Learner, light_learner(settings, study, seed))))


@contextmanager
def running(folder: Path, honest: bool) -> Iterator[tuple[Federation, ScriptedRequester[Federation]]]:
    """Both servers and a study to play with; ``honest``: three agents too, with a study of their own."""
    spec = FederationSpec("fuzzed", REQUESTER, light_sites((REQUESTER, *HONEST, MALLORY)), ports=free_ports())
    federation = Federation(folder, spec, slow_learner, limits=LIMITS)
    sites = ScriptedRequester(federation, make_study(federation, 60_000, name=PLAYED, round_deadline_s=4 * 3600.0))
    try:
        federation.start_servers()
        sites.create()
        if honest:
            _start_honest(federation)
        yield federation, sites
    finally:
        sites.close()
        federation.stop()


def _start_honest(federation: Federation) -> None:
    """Returns after their first round."""
    federation.start_party(REQUESTER, start_when=len(HONEST))
    for site in HONEST:
        federation.start_party(site, studies=[STUDY])
    study = light_study(federation.parties, STUDY, RuleSpec(name=RuleName.FEDAVG), rounds=9_000)
    fewer = study.parameters.model_copy(update={"least_contributors": len(HONEST)})
    federation.hand_in(study.model_copy(update={"parameters": fewer}))
    wait_for("a first round", lambda: honest_rounds(federation) > 0, tails=federation.site_tails)


def honest_rounds(federation: Federation) -> int:
    if not (journal(federation, REQUESTER, STUDY).folder / "metrics.jsonl").exists():
        return 0
    return sum(record.state == "released" for record in rounds_of(federation, REQUESTER, STUDY))


def memory_mb(federation: Federation) -> float:
    return max(resident_mb(federation.servers[side].process.pid) for side in Side)


def data_mb(federation: Federation) -> float:
    folders = [federation.folder / OPERATOR_NAMES[side] / "data" for side in Side]
    found = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        with suppress(FileNotFoundError):  # servers write and delete meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found / 1e6


def troubles(log: str) -> list[str]:
    """Lines of a server's log that no request may bring about."""
    return [line[:2000] for line in log.lower().splitlines() if "internal error" in line or "traceback" in line]


def fuzz(
    folder: Path, amounts: Amounts, seed: int, keep: Callable[[FuzzedRequests], None] = lambda so_far: None
) -> FuzzedRequests:
    """All kinds, mixed; then what is left. ``keep`` is given the counts so far every half minute."""
    with ExitStack() as opened:
        federation, sites = opened.enter_context(running(folder, amounts.honest))
        counts, before = Counts(), _Standing.of(federation)
        if amounts.described:
            _described(federation, amounts.described, counts)
        announcement = sites.announcement(1, closes_in_s=3.5 * 3600.0)
        sites.announce(announcement)
        workers = [_Worker(sites, announcement, Random(f"{seed} {n}"), counts, opened) for n in range(WORKERS)]
        with ThreadPoolExecutor(WORKERS) as pool:
            left: set[Future[None]] = {pool.submit(worker.send, amounts) for worker in workers}
            while left:
                done, left = wait(left, KEPT_EVERY_S, FIRST_COMPLETED)
                for one in done:
                    one.result()
                keep(so_far(federation, counts, before, seed))
        if amounts.honest:
            wait_for("an honest round more", lambda: honest_rounds(federation) > before.rounds)
        federation.check()  # nobody has ended
        for side in Side:
            federation.wait_for(side, "/healthz")
        return so_far(federation, counts, before, seed)


@dataclass(frozen=True)
class _Standing:
    """The state of servers and honest sites before the first request."""

    at_s: float
    memory_mb: float
    rounds: int

    @classmethod
    def of(cls, federation: Federation) -> _Standing:
        return cls(time.monotonic(), memory_mb(federation), honest_rounds(federation))


def so_far(federation: Federation, counts: Counts, before: _Standing, seed: int) -> FuzzedRequests:
    """The counts so far, and the servers' logs."""
    logged = [line for side in Side for line in troubles(federation.servers[side].log)]
    with counts.lock:
        return FuzzedRequests(
            seed=seed,
            requests=counts.requests.total(),
            by_kind=dict(counts.requests),
            by_answer=dict(counts.answers),
            errors=(*counts.errors, *logged),
            honest_rounds=honest_rounds(federation) - before.rounds,
            seconds=time.monotonic() - before.at_s,
            grown_mb=memory_mb(federation) - before.memory_mb,
            data_mb=data_mb(federation),
        )


@dataclass
class _Worker:
    """A share of all requests, on connections of its own; they are closed with ``opened``."""

    sites: ScriptedRequester[Federation]
    announcement: Announcement
    random: Random
    counts: Counts
    opened: ExitStack

    def send(self, amounts: Amounts) -> None:
        """Send requests of every kind, mixed."""
        calls = [*self._of_strangers(amounts), *self._of_members(amounts), *self._of_uploads(amounts)]
        self.random.shuffle(calls)
        for call in calls:
            call()

    def _of_strangers(self, amounts: Amounts) -> Iterator[Callable[[], None]]:
        for side in Side:
            strangers = Strangers(self.sites.federation, side, self.random, self.counts)
            self.opened.callback(strangers.close)
            yield from [strangers.whole] * (amounts.whole // WORKERS // 2)
            yield from [strangers.spoiled] * (amounts.spoiled // WORKERS // 2)

    def _of_members(self, amounts: Amounts) -> Iterator[Callable[[], None]]:
        parties = (
            (MALLORY, "site", OF_SITES, amounts.site, tuple(Side)),
            (REQUESTER, "requester", OF_SITES, amounts.requester, tuple(Side)),
            (OPERATOR_NAMES[Side.A], "server", OF_PEERS, amounts.peer, (Side.B,)),
        )
        for name, who, templates, count, to in parties:
            client = self.sites.federation.client(name)
            self.opened.callback(client.close)
            member = Members(client, who, templates, self.random, self.counts)
            yield from (partial(member.send, to[number % len(to)]) for number in range(count // WORKERS))

    def _of_uploads(self, amounts: Amounts) -> Iterator[Callable[[], None]]:
        unfinished = Unfinished(self.sites, self.announcement, MALLORY, self.random, self.counts)
        self.opened.callback(unfinished.close)
        yield from [unfinished.begin] * (amounts.uploads // WORKERS)


def _described(federation: Federation, examples: int, counts: Counts) -> None:
    """Requests that each server's own description allows or forbids, with and without a key."""
    from schemathesis import openapi  # half a second, which every collection would take

    client = federation.client(MALLORY)
    try:
        for side in Side:
            described = client.http.get(federation.servers[side].operations_url + "/openapi.json").json()
            found: list[Any] = list(openapi.from_dict(described).get_all_operations())
            for result in found:
                _draw(result.ok(), side, client, examples, counts)
    finally:
        client.close()


def _draw(operation: Any, side: Side, client: SignedClient, examples: int, counts: Counts) -> None:
    """Both ways, so many times."""
    from schemathesis.generation import GenerationMode

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE), body=st.binary(max_size=200))
    def send(case: Any, body: bytes) -> None:
        values = {name: quote(str(v), safe="") for name, v in case.path_parameters.items()}
        query = {name: value for name, value in (case.query or {}).items() if name != "wait_s"}
        path = case.path.format(**values) + (f"?{urlencode(query)}" if query else "")
        method = case.method.upper()
        signed = client.send(side, method, path, body)
        counts.note("described, signed", signed.status_code, lambda: f"{method} {path}")
        if signed.is_error and set(signed.json()) != PROBLEM:
            counts.errors.append(f"{method} {path}: {signed.text}")
        bare = client.http.request(method, client.federation.url(side) + path, content=body)
        counts.note("described, without a key", bare.status_code, lambda: f"{method} {path}")

    send()


def assert_sound(done: FuzzedRequests) -> None:
    assert not done.errors, "\n".join(done.errors[:20])
    assert done.grown_mb < MOST_GROWN_MB
    assert "500" not in done.by_answer
    assert {"200", "400", "404"} <= set(done.by_answer)


def test_requests_that_nobody_means_do_no_harm(tmp_path: Path) -> None:
    done = fuzz(tmp_path, QUICK, seed=1)
    assert_sound(done)
    assert done.requests > 400


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_requests_that_nobody_means(tmp_path: Path) -> None:
    """Half an hour on a quiet machine; one that is cut short leaves the counts so far."""
    done = fuzz(tmp_path, FULL, 2, partial(keep_counts, "fuzz_requests.json"))
    keep_counts("fuzz_requests.json", done)
    assert_sound(done)
    assert done.requests >= 100_000
    assert done.by_kind[KIND] == 1_000
    assert done.honest_rounds > 10


def test_an_answer_of_500_is_an_error() -> None:
    counts = Counts()
    for status in (200, 0, 404, 503, 500, 507):
        counts.note("kind", status, lambda: "what")
    assert counts.errors == ["kind: 500: what", "kind: 507: what"]
    assert counts.answers["closed"] == 1
