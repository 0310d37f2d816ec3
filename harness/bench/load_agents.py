"""A process that runs many sites' agents, each as ``moiety agent run`` does but for what they learn with.

``python -m harness.bench.load_agents FOLDER OUT SITE...`` runs until SIGTERM and then writes what the calls took to
OUT. Nothing is trained: updates come from :class:`LightLearner` in microseconds.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from client_agent.daemon import run_agent
from client_agent.net.ledger import Ledger
from client_agent.net.transport import CountingTransport, tls_context
from client_agent.settings import load_settings
from client_agent.site.events import AgentEvent, EventKind
from harness.bench.meter import Figures
from harness.federation.learners import light_learner
from host.output_files import rewrite

_NUMBERS: Final = re.compile(r"\d+")
_MILLISECONDS: Final = 1000.0


class CallTimes(Figures):
    """Milliseconds of one kind of call, from its first byte to the last one of the answer, TLS included."""

    purpose: str
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    most_ms: float


class Calls:
    """The calls of a process's agents so far; any thread may note one."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, list[float]] = {}
        self.failed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False

    def note(self, purpose: str, seconds: float, failure: str | None) -> None:
        """One call; nothing once it is closed."""
        kind = _NUMBERS.sub("N", purpose)
        with self._lock:
            if self._closed:
                return
            if failure is None:
                self.milliseconds.setdefault(kind, []).append(round(_MILLISECONDS * seconds, 2))
            else:
                self.failed[f"{kind}: {failure}"] += 1

    def close(self) -> None:
        """Note nothing more: calls that a stopped agent breaks off are no failures."""
        with self._lock:
            self._closed = True


def called(milliseconds: Sequence[Mapping[str, Sequence[float]]]) -> tuple[CallTimes, ...]:
    """Percentiles of every kind of call of all processes together, those made most often first."""
    together: dict[str, list[float]] = {}
    for one in milliseconds:
        for purpose, taken in one.items():
            together.setdefault(purpose, []).extend(taken)
    found = [_times_of(purpose, np.asarray(taken)) for purpose, taken in together.items() if taken]
    return tuple(sorted(found, key=lambda one: (-one.count, one.purpose)))


def _times_of(purpose: str, taken: np.ndarray[tuple[int], np.dtype[np.float64]]) -> CallTimes:
    p50, p95, p99 = (float(value) for value in np.percentile(taken, [50, 95, 99]))
    return CallTimes(
        purpose=purpose, count=len(taken), p50_ms=p50, p95_ms=p95, p99_ms=p99, most_ms=float(np.max(taken))
    )


class TimedTransport(httpx.BaseTransport):
    """As the transport inside of it; every call is noted once its answer is read, or has failed."""

    def __init__(self, inner: httpx.BaseTransport, calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        purpose, begun = str(request.extensions.get("purpose", "request")), time.perf_counter()

        def note(failure: str | None) -> None:
            self._calls.note(purpose, time.perf_counter() - begun, failure)

        try:
            answer = self._inner.handle_request(request)
        except httpx.HTTPError as error:
            note(type(error).__name__)
            raise
        said = None if answer.is_success else f"status {answer.status_code}"
        stream = answer.stream
        if not isinstance(stream, httpx.SyncByteStream):
            raise TypeError(f"an answer of {type(stream).__name__}: agents read answers as they come")
        body = _TimedBody(stream, said, note)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body)

    def close(self) -> None:
        self._inner.close()


class _TimedBody(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, failure: str | None, note: Callable[[str | None], None]) -> None:
        self._inner = inner
        self._failure = failure
        self._note = note
        self._open = True

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._inner
        except httpx.HTTPError as error:
            self._failure = type(error).__name__
            raise

    def close(self) -> None:
        self._inner.close()
        if self._open:
            self._open = False
            self._note(self._failure)


class Played(Figures):
    """The work of a process's agents: milliseconds of calls by purpose, failed calls, and what they complained of."""

    milliseconds: dict[str, list[float]]
    failed: dict[str, int]
    problems: tuple[str, ...]


class Agents:
    """Agents of sites in threads of this process."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.calls = Calls()
        self.problems: list[str] = []
        self._context = tls_context(folder / "ca.pem")
        self._stop = threading.Event()
        configs = [folder / site / "settings.toml" for site in sites]
        self._threads = [threading.Thread(target=self._run, args=(c,), name=c.parent.name) for c in configs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.calls.close()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, config: Path) -> None:
        settings = load_settings(config)
        try:
            run_agent(settings, self._stop, self._emit, partial(light_learner, settings), self._connect)
        except BaseException as error:
            self.problems.append(f"{settings.site} ended: {error!r}")
            raise

    def _connect(self, server: str, ledger: Ledger) -> httpx.BaseTransport:
        return TimedTransport(CountingTransport(server, self._context, ledger), self.calls)

    def _emit(self, event: AgentEvent) -> None:
        if event.kind is EventKind.PROBLEM and not self._stop.is_set():
            self.problems.append(f"{event.site}: {event.text}")


def main(folder: Path, out: Path, sites: Sequence[str]) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    agents = Agents(folder, sites)
    agents.start()
    ended.wait()
    agents.stop()
    calls = agents.calls
    played = Played(milliseconds=calls.milliseconds, failed=calls.failed, problems=tuple(agents.problems))
    rewrite(out, played.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
