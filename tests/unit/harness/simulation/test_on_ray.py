"""A case's runs as tasks of a Ray cluster: the same bits, whatever happens to its machines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from harness.attack.signed_client import until
from harness.simulate.case import read_case
from harness.simulate.case_run import CaseOptions, CaseProgress, run_case
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import PlannedRun
from harness.simulate.store import code_digest
from harness.simulate.workers import RayCluster, _execute_in_task, _Refused, cluster_of, computing_of
from protocol.errors import ConfigurationError
from tests.ports import free_ports
from tests.unit.harness.simulation.test_shards import case_file, lines_of

_RUN: Final = "weight_erosion-city-hospital-0"


@dataclass(frozen=True)
class _Started:
    """A cluster that runs already, and the process that all its others descend from."""

    cluster: RayCluster
    head: psutil.Process

    def workers(self) -> list[psutil.Process]:
        """Those that do a run now."""
        return [one for one in self.head.children(recursive=True) if "_execute_in_task" in _words(one)]


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Started]:
    """A cluster with an address, as one of several machines has, that takes nobody who lacks its token."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'moiety[scale]'")
    port, _ = free_ports()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _environment(secrets.token_hex(32)).items():
            patch.setenv(name, value)  # before Ray is imported here: it reads them then
        options = f"--head --block --port {port} --num-cpus 1 --object-store-memory 100000000 --include-dashboard false"
        command = [Path(sys.executable).with_name("ray"), "start", *options.split()]
        log = tmp_path_factory.mktemp("log") / "ray"
        with log.open("wb") as told, tempfile.TemporaryDirectory(prefix="ray") as folder:  # a short path, for sockets
            head = psutil.Popen([*command, "--temp-dir", folder], stdout=told, stderr=told, start_new_session=True)
            try:
                assert until(lambda: b"Ray runtime started" in log.read_bytes(), 60.0), log.read_text()
                yield _Started(RayCluster(f"127.0.0.1:{port}"), head)
            finally:
                _end(head)


def _environment(token: str) -> dict[str, str]:
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def _end(head: psutil.Process) -> None:
    """This cluster alone: ``ray stop`` would end every one of this machine."""
    all_of_it = [head, *head.children(recursive=True)]
    for process in all_of_it:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(all_of_it, timeout=10)


@pytest.mark.slow
def test_a_cluster_gives_the_lines_of_one_process_though_a_worker_is_killed(tmp_path: Path, started: _Started) -> None:
    """The file of its second round is a pipe, which holds whoever opens it until they are killed."""
    case, killed, seen = read_case(case_file(tmp_path, rounds=6)), list[int](), list[CaseProgress]()
    only = ("weight_erosion",)
    run_case(case, CaseOptions(tmp_path / "one", only=only))
    first, second = (tmp_path / "many" / "partial" / f"{_RUN}{kept}" for kept in (".json", ".0.safetensors.tmp"))
    second.parent.mkdir(parents=True)
    os.mkfifo(second)

    def kill_once_it_has_kept_a_round() -> None:
        until(first.exists, 100.0)
        at_work = started.workers()
        second.unlink()
        for process in at_work:
            killed.append(process.pid)
            process.kill()

    killer = threading.Thread(target=kill_once_it_has_kept_a_round)
    killer.start()
    options = CaseOptions(tmp_path / "many", only=only, checkpoint_every_s=0.0, cluster=started.cluster)
    run_case(case, options, seen.append)
    killer.join()
    assert killed
    assert lines_of(tmp_path / "many") == lines_of(tmp_path / "one")
    assert (seen[-1].runs_done, seen[-1].rounds_done) == (1, 6)
    assert not list((tmp_path / "many" / "partial").glob("*.json"))
    without = replace(options, out=tmp_path / "gpu", cluster=replace(started.cluster, gpus_per_run=1.0))
    with pytest.raises(ConfigurationError, match="asks for 1 CPUs and 1 GPUs, which no machine of the cluster has"):
        run_case(case, without)


@pytest.mark.soak
def test_other_code_in_the_cluster_is_refused(
    tmp_path: Path, started: _Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.simulate.workers.code_digest", lambda: "0" * 64)
    with pytest.raises(ConfigurationError, match=r"of the cluster has code .*install one version on all machines"):
        run_case(read_case(case_file(tmp_path)), CaseOptions(tmp_path / "code", cluster=started.cluster))


@pytest.mark.soak
def test_a_killed_command_goes_on_where_it_stopped_and_leaves_no_run_behind(tmp_path: Path, started: _Started) -> None:
    case = case_file(tmp_path, rounds=200)
    run_case(read_case(case), CaseOptions(tmp_path / "one", only=("weight_erosion",)))
    words = f"-m moiety simulate {case} --only weight_erosion --out {tmp_path / 'many'} --address"
    command = [sys.executable, *words.split(), str(started.cluster.address)]
    first = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert until(lambda: bool(list((tmp_path / "many" / "partial").glob("*.json"))), 100.0)
    first.kill()
    first.wait()
    assert until(lambda: not started.workers(), 60.0)
    assert not (tmp_path / "many" / "results.jsonl").exists() or not lines_of(tmp_path / "many")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert lines_of(tmp_path / "many") == lines_of(tmp_path / "one")


def test_a_machine_refuses_other_code_and_data_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = list[PlannedRun]()

    def take(runs: Sequence[PlannedRun], where: object, show: object) -> Iterator[tuple[PlannedRun, RunLine]]:
        planned.extend(runs)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.simulate.case_run.run_all", take)
    with pytest.raises(KeyboardInterrupt):
        run_case(read_case(case_file(tmp_path)), CaseOptions(tmp_path / "out", only=("local",)))
    other = _execute_in_task(planned[0], None, "0" * 64)
    assert isinstance(other, _Refused)
    assert "install one version on all machines" in other.why
    absent = replace(planned[0], data=replace(planned[0].data, requester="nobody"))
    refused = _execute_in_task(absent, None, code_digest())
    assert isinstance(refused, _Refused)
    assert refused.why.startswith(f"machine {socket.gethostname()}: ")
    assert "'nobody' cannot be the requester" in refused.why


def test_without_ray_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'moiety\[scale\]'"):
        run_case(read_case(case_file(tmp_path)), CaseOptions(tmp_path / "out", cluster=RayCluster("head:6379")))


def test_words_of_a_cluster_are_refused_without_one() -> None:
    assert cluster_of(None, None, None) is None
    assert cluster_of("head:6379", None, 0.25) == RayCluster("head:6379", 1.0, 0.25)
    for asked in ((1.0, None), (None, 0.5)):
        with pytest.raises(ConfigurationError, match="give its --address besides"):
            cluster_of(None, *asked)
    for parts in (-1.0, 1.5, float("nan")):
        with pytest.raises(ConfigurationError, match="--gpus-per-run: found"):
            cluster_of("head:6379", None, parts)


def test_a_cluster_says_what_a_run_trains_on() -> None:
    shared = computing_of(RayCluster("head:6379", gpus_per_run=0.25), "auto")
    assert (shared.device.type, shared.batched) == ("cuda", True)
    assert computing_of(RayCluster("head:6379"), "auto").device.type == "cpu"
    with pytest.raises(ConfigurationError, match="--gpus-per-run instead"):
        computing_of(RayCluster("head:6379"), "cuda:1")
