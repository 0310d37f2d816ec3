"""A folder is one process's at a time, whatever ends it, and one party's for ever."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from host import folder_lock
from host.folder_lock import Owner, holder_of, one_at_a_time, one_of_several, one_process, require_owner
from protocol.errors import ConfigurationError, StorageFull

OWN = Owner("server a", "op-a", "1f" * 8, "first")
HOLD = """
import sys, time
from pathlib import Path
from host.folder_lock import one_process
with one_process(Path(sys.argv[1]), "data_dir", "the server of side 'a'"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_with_who_holds_it_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        held = rf"'data_dir': .*data is in use by the server of side 'a', process {holder.pid} on .*since \d{{4}}"
        with pytest.raises(ConfigurationError, match=held), one_process(folder, "data_dir", "another"):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        if holder.stdout is not None:
            holder.stdout.close()
    until = time.monotonic() + 5
    while True:
        try:
            with one_process(folder, "data_dir", "the next"):
                assert (folder / "lock").read_text().startswith(f"the next, process {os.getpid()} on ")
            return
        except ConfigurationError:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "refused", "said"),
    [
        (errno.ENOSPC, StorageFull, r"'data_dir': no space left in .*data: free space, and start this again"),
        (errno.EROFS, ConfigurationError, r"'data_dir': .*data cannot be used: Read-only file system"),
    ],
)
def test_a_disk_that_takes_no_lock_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refused: type[Exception], said: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(refused, match=said), one_process(tmp_path / "data", "data_dir", "a server"):
        pytest.fail("the block is not entered")


def test_what_fails_inside_is_not_the_locks(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mine"), one_process(tmp_path / "data", "data_dir", "a server"):
        raise OSError(errno.ENOSPC, "mine")


def test_a_file_system_that_cannot_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: object, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folder_lock.fcntl, "flock", no_locks)  # type: ignore[attr-defined]
    with (
        pytest.raises(ConfigurationError, match=r"cannot lock \(No locks available\); put it on a disk"),
        one_process(tmp_path, "data_dir", "a server"),
    ):
        pass


def test_a_folder_is_one_partys(tmp_path: Path) -> None:
    require_owner(tmp_path, "data_dir", OWN, "take another")
    require_owner(tmp_path, "data_dir", OWN, "take another")
    for other in (
        Owner("server b", "op-a", "1f" * 8, "first"),
        Owner("server a", "op-a", "2f" * 8, "first"),
        Owner("server a", "op-a", "1f" * 8, "second"),
    ):
        with pytest.raises(ConfigurationError, match=r"belongs to server a 'op-a' with key 1f") as refused:
            require_owner(tmp_path, "data_dir", other, "take another")
        assert str(other) in refused.value.detail
    (tmp_path / "owner.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"owner\.json cannot be read"):
        require_owner(tmp_path, "data_dir", OWN, "take another")


def test_several_share_a_folder_under_names_of_their_own_and_none_has_it_alone(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with (
        one_of_several(tmp_path, "data_dir", "the server, upload-1", "upload-1"),
        one_of_several(tmp_path, "data_dir", "the server, upload-2", "upload-2"),
    ):
        assert (holder_of(tmp_path) or "").startswith("the server, upload-1, process ")
        with (
            pytest.raises(
                ConfigurationError, match=r"is in use by the server, upload-2, process .*; stop .* another port, or"
            ),
            one_of_several(tmp_path, "data_dir", "the server, upload-2", "upload-2"),
        ):
            pass
        with (
            pytest.raises(ConfigurationError, match="is in use by the server, upload-1, process"),
            one_process(tmp_path, "data_dir", "a server"),
        ):
            pass
    assert holder_of(tmp_path) is None
    with (
        one_process(tmp_path, "data_dir", "a server"),
        pytest.raises(ConfigurationError, match="is in use by a server, process"),
        one_of_several(tmp_path, "data_dir", "the server, upload-1", "upload-1"),
    ):
        pass


def test_one_at_a_time_waits_for_the_other(tmp_path: Path) -> None:
    order = list[str]()

    def second() -> None:
        with one_at_a_time(tmp_path):
            order.append("second")

    waiting = threading.Thread(target=second)
    with one_at_a_time(tmp_path):
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
