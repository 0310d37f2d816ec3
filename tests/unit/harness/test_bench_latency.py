"""Round trips of a round, counted over a network that takes its time."""

from __future__ import annotations

from typer.testing import CliRunner

from harness.bench.cli import app
from harness.bench.latency import LatencyBenchmark, delayed_rounds, latency_section, latency_text


def test_a_round_waits_for_a_fixed_number_of_round_trips_and_little_else() -> None:
    measured, summed = delayed_rounds((200.0,))
    for one in (measured, summed):
        assert one.round_trips is not None
        assert 8 < one.round_trips < 24
        assert one.waited_s < 1.2 * one.round_trips * 0.2
    assert (measured.rule, summed.rule) == ("weight_erosion", "fedavg")
    result = LatencyBenchmark(
        contributors=10,
        parameters=20,
        released_rounds=10,
        lock_to_release_s=None,
        whole_round_s=0.5,
        between_servers_bytes_per_contributor=1e6,
        delayed=(measured, summed),
        command="moiety bench latency",
        date="today",
        machine="one",
        versions={},
    )
    assert f"{measured.round_trips:.1f} round trips" in latency_text(result)
    assert f"| fedavg | 200 | {summed.waited_s:.2f} | {summed.round_trips:.1f} |" in latency_section(result)


def test_delays_are_milliseconds() -> None:
    for wrong in ("twenty", "-1", "0,9999999", ""):
        found = CliRunner().invoke(app, ["latency", "--delays", wrong])
        assert found.exit_code == 2, wrong
