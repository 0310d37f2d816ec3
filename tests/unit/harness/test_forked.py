"""A program in a process that was forked for it: as much one of its own as one that was started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.federation.processes import Forked, fork_command
from harness.fork_server import ONE_THREAD, one_thread
from tests.kit.present import present


def say_who(*words: str) -> None:
    print(os.getpid() == os.getpgid(0), sorted(os.environ.items()), *words, flush=True)


def wait_for_a_signal(*words: str) -> None:
    print("waiting", flush=True)
    threading.Event().wait()


def say_what_its_parent_is() -> None:
    threads = [path.read_text().strip() for path in Path(f"/proc/{os.getppid()}/task").glob("*/comm")]
    print(len(threads) - threads.count("jemalloc_bg_thd"), "sklearn.metrics" in sys.modules, "torch" in sys.modules)


def waiting(tmp_path: Path) -> Forked:
    log = tmp_path / "log"
    log.touch()
    process = Forked(wait_for_a_signal, (), log, {})
    deadline = time.monotonic() + 60
    while "waiting" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_it_has_a_group_an_environment_and_a_log_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = Forked(say_who, ("one", "two words"), log, {"MOIETY_WORD": "given"})
    assert process.wait(60) == process.poll() == 0
    assert process.pid != os.getpid()
    assert log.read_text() == "before\nTrue [('MOIETY_WORD', 'given')] one two words\n"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of a process's threads")
def test_it_has_what_an_agent_learns_and_scores_with_from_a_process_of_one_thread(tmp_path: Path) -> None:
    """A fork would lose every other one; the allocator that comes with arrow starts its own again."""
    log = tmp_path / "log"
    assert Forked(say_what_its_parent_is, (), log, {}).wait(60) == 0
    assert log.read_text() == "1 True True\n"


def test_the_command_line_ends_with_its_own_exit_code_and_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = fork_command(["server", "run", "--config", str(tmp_path / "nothing.toml")], log, os.environ)
    assert process.wait(60) == 2
    assert "nothing.toml" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_and_names_itself(tmp_path: Path, number: signal.Signals) -> None:
    process = waiting(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == -number
    process.send_signal(number)  # to one that has ended: nothing


def test_it_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """The parent is another process here, which starts one that would wait for ever, and imports nothing for it."""
    log = tmp_path / "log"
    program = (
        "import time; from pathlib import Path; from harness import fork_server;"
        "from harness.federation import processes;"
        "from tests.unit.harness.test_forked import wait_for_a_signal; fork_server._IN_MEMORY = 'json';"
        f"print(processes.Forked(wait_for_a_signal, (), Path({str(log)!r}), {{}}).pid, flush=True); time.sleep(600)"
    )
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True
    ) as parent:
        waits = psutil.Process(int(present(parent.stdout).readline()))
        assert waits.is_running()
        parent.kill()
    waits.wait(60)


def test_libraries_are_told_to_take_one_thread_and_this_process_keeps_its_own(tmp_path: Path) -> None:
    before = dict(os.environ)
    waiting(tmp_path).send_signal(signal.SIGKILL)
    assert dict(os.environ) == before
    assert one_thread({"A": "b", ONE_THREAD[0]: "8"}) == {"A": "b", **dict.fromkeys(ONE_THREAD, "1")}
