"""The section of docs/benchmarks.md about load."""

from __future__ import annotations

from harness.bench.load.results import LoadBenchmark
from harness.bench.load.run import load_lines

_WHAT = (
    "The agents' own code in a few processes, over TLS and sockets, with a learner that trains nothing; all must be in "
    "every sum. CPU and growth are counted from the end of the first round on; the agents share the machine with "
    "the servers, so times of calls are those of a machine that is as busy as its load says. A call's time runs from "
    "its first byte to the last one of the answer; calls that wait for news are answered when there is some.\n"
)


def load_section(result: LoadBenchmark) -> str:
    """One run of ``moiety bench load``."""
    lines = "\n".join(f"- {line}" for line in load_lines(result))
    head = "| call | calls | p50, ms | p95, ms | p99, ms | most, ms |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
    rows = "".join(
        f"| {call.purpose}{' (waits for news)' if call.waits_for_news else ''} | {call.count:,} | {call.p50_ms:.0f} "
        f"| {call.p95_ms:.0f} | {call.p99_ms:.0f} | {call.most_ms:.0f} |\n"
        for call in result.calls
    )
    title = f"## Held: {result.sites} sites, {result.parameters:,} parameters, {result.rounds} rounds"
    return f"{title}\n\n{_WHAT}\n{lines}\n\n{head}{rows}"
