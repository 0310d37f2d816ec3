"""Whole rounds of other systems: the gauge, the relay, marks, environments, rows of what does not run, the page."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.bench.meter import Gauge, Reading, Relay, between, used
from harness.bench.peer_systems import Asked, Marks, measured_rounds, read_marks, wait_for_round
from harness.bench.peers import PeersBenchmark, WholeRounds, whole_rounds
from harness.bench.processes import ADOPTING, Processes, free_port
from protocol.errors import ConfigurationError, ProtocolViolation, Unavailable
from tests.unit.harness.test_bench import published

WORK = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
DETACHED = f"""import os, time
if os.fork() == 0:
    if os.fork() == 0:
        exec({WORK!r})
    os._exit(0)
time.sleep(60)
"""


def readings() -> list[Reading]:
    return [
        Reading(float(at), 10.0 + at, 100.0 + at, 20.0 + 2 * at, 300.0 - at, 1000 * at, 10 * at) for at in range(10)
    ]


def test_between_two_moments_everything_is_read_off_in_proportion() -> None:
    found = between(readings(), 2.5, 6.0)
    assert (found.server_cpu_s, found.client_cpu_s) == pytest.approx((3.5, 7.0))
    assert (found.server_peak_mb, found.client_peak_mb) == (106.0, 297.0)
    assert (found.up_bytes, found.down_bytes) == pytest.approx((3500.0, 35.0))


@pytest.mark.parametrize(("begin", "end"), [(-1.0, 5.0), (5.0, 11.0)])
def test_moments_that_nobody_read_around_are_refused(begin: float, end: float) -> None:
    with pytest.raises(ProtocolViolation, match="no readings"):
        between(readings(), begin, end)


def test_a_tree_counts_what_has_ended_and_what_has_detached_itself() -> None:
    with subprocess.Popen([sys.executable, "-c", ADOPTING, sys.executable, "-c", DETACHED]) as root:
        try:
            deadline = time.monotonic() + 60
            while used([root.pid])[0] < 0.3 and time.monotonic() < deadline:
                time.sleep(0.05)
            cpu_s, resident_mb = used([root.pid])
        finally:
            root.kill()
    assert cpu_s >= 0.3, "the grandchild, whose parent has ended, belongs to the root"
    assert resident_mb > 1


def test_a_gauge_reads_bytes_while_it_is_open() -> None:
    counted = iter(range(1, 1000))
    with Gauge([], [], lambda: (next(counted), 0)) as gauge:
        deadline = time.monotonic() + 30
        while len(gauge.readings) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert [one.up_bytes for one in gauge.readings] == list(range(1, len(gauge.readings) + 1))
    assert (gauge.readings[0].server_cpu_s, gauge.readings[0].server_mb) == (0.0, 0.0)


def test_a_relay_counts_both_directions() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Relay(server.getsockname()[1]) as relay:
        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            accepted, _ = server.accept()
            client.sendall(b"x" * 1000)
            client.shutdown(socket.SHUT_WR)
            taken = b"".join(iter(lambda: accepted.recv(4096), b""))
            accepted.sendall(b"y" * 70)
            accepted.close()
            assert b"".join(iter(lambda: client.recv(4096), b"")) == b"y" * 70
        assert len(taken) == 1000
        assert relay.counted() == (1000, 70)


def test_a_client_of_a_relay_to_nowhere_is_let_go() -> None:
    with Relay(free_port()) as relay, socket.create_connection(("127.0.0.1", relay.port)) as client:
        assert client.recv(1) == b""


def test_marks_are_read_and_strange_ones_refused(tmp_path: Path) -> None:
    assert read_marks(tmp_path / "none") == Marks({}, None)
    (tmp_path / "marks").write_text("1.5 round 1\n2.5 found 0.0 0.5\n3.5 round 2\n")
    assert read_marks(tmp_path / "marks") == Marks({1: 1.5, 2: 3.5}, (0.0, 0.5))
    (tmp_path / "marks").write_text("1.5 rounds\n")
    with pytest.raises(ProtocolViolation, match="no mark"):
        read_marks(tmp_path / "marks")


@pytest.mark.parametrize("found", [None, (0.0, 0.011), (0.012, 0.012), (0.0055, 0.0055)])
def test_rounds_whose_average_is_wrong_count_for_nothing(found: tuple[float, float] | None) -> None:
    marks = Marks({1: 0.5, 2: 1.0, 3: 4.0, 4: 7.0}, found)
    with pytest.raises(ProtocolViolation, match=r"model"):
        measured_rounds(readings(), marks, Asked(10, 10, 2))


def test_rounds_are_measured_from_the_second_one_on() -> None:
    marks = Marks({1: 0.5, 2: 1.0, 3: 4.0, 4: 7.0}, (0.011, 0.011))
    assert measured_rounds(readings(), marks, Asked(10, 10, 2)).seconds == 6.0


def test_a_program_that_ends_with_an_error_is_named_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path, {}) as processes:
        processes.start("odd", [sys.executable, "-c", "raise SystemExit('no such thing')"])
        with pytest.raises(Unavailable, match="odd ended with exit code 1: no such thing"):
            wait_for_round(processes, tmp_path / "marks", 1, ["odd"], 60)


def test_what_does_not_listen_or_speak_in_time_is_named_and_ended(tmp_path: Path) -> None:
    with Processes(tmp_path, {}) as processes:
        pid = processes.start("still", [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(Unavailable, match="still does not listen"):
            processes.wait_for_port("still", free_port(), within_s=0.1)
        with pytest.raises(Unavailable, match="still has not said 'ready'"):
            processes.wait_for_text("still", "ready", within_s=0.1)
        with pytest.raises(Unavailable, match="round 1 had not begun"):
            wait_for_round(processes, tmp_path / "marks", 1, ["still"], 0.1)
    assert used([pid]) == (0.0, 0.0)


def test_an_environment_that_cannot_be_made_is_a_row_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.bench.peer_systems.sys.executable", "/bin/false")
    said: list[str] = []
    (row,) = whole_rounds(Asked(10, 3, 1), tmp_path, ["flower"], said.append)
    assert row.error is not None
    assert row.error.startswith("python -m venv")
    assert row.error.endswith(": no message")
    assert row.server_cpu_s is None
    assert said[0] == f"environments of other systems are kept in {tmp_path}"


def test_a_system_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'fate' is no system"):
        whole_rounds(Asked(10, 3, 1), tmp_path, ["fate"])


def test_a_system_that_did_not_run_is_named_and_has_no_row() -> None:
    missing = WholeRounds(name="Two", version=None, how="-", protected="-", error="pip install two: no network")
    found = published(PeersBenchmark, "peers_secagg_1e6_10")
    section = found.model_copy(update={"rounds": (*found.rounds, missing)}).section()
    assert "- Two: not measured: pip install two: no network" in section
    assert "| Two |" not in section
