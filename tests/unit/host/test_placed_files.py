"""Files and folders that a person asked for are whole or as they were, also behind links and on full disks."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.output_files import filling, rewrite, writable, write_new
from protocol.errors import ConfigurationError, MoietyError, StorageFull
from tests.unit.host.test_files import files_of_at_most

NAMES = ("first", "last", "mark")


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def fill(folder: Path, text: str, *, mark: str = "mark") -> None:
    with filling(folder, "last", NAMES, mark) as new:
        for name in NAMES:
            (new / name).write_text(text)


@pytest.mark.parametrize("there", [True, False], ids=["replaced", "new"])
def test_a_link_stays_one_and_its_file_keeps_its_mode(tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "report", tmp_path / "report"
    if there:
        target.write_text("before")
        target.chmod(0o640)
        link.symlink_to("disk/report")
    rewrite(link if there else target, "after")
    assert target.read_text() == "after"
    assert link.is_symlink() is there
    assert not there or stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["report"]


def test_new_files_follow_a_linked_folder_and_have_their_mode(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "keys").symlink_to("disk")
    write_new((tmp_path / "keys" / "secret", "s", 0o600), (tmp_path / "keys" / "public", "p", 0o644))
    assert content(tmp_path / "disk") == {"secret": "s", "public": "p"}
    assert stat.S_IMODE((tmp_path / "disk" / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["dangling", "loop", "dangling/file"])
def test_a_link_to_nothing_is_refused_as_its_disk_may_not_be_mounted(tmp_path: Path, name: str) -> None:
    (tmp_path / "dangling").symlink_to("nowhere/deep")
    (tmp_path / "loop").symlink_to("loop")
    for write in (lambda p: rewrite(p, "x"), lambda p: write_new((p, "x", 0o600)), lambda p: fill(p, "x"), writable):
        why = "its links lead in a circle" if name == "loop" else r"is a link to .*, which is not there; .*: mount"
        with pytest.raises(ConfigurationError, match=why):
            write(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "loop"]


@pytest.mark.parametrize("name", ["x/y/z", "n" * 300])
def test_a_folder_that_cannot_be_filled_leaves_none_of_its_parents(tmp_path: Path, name: str) -> None:
    with pytest.raises((ConfigurationError, StorageFull), match="nothing was changed") as refused:  # noqa: SIM117
        with filling(tmp_path / name, "last"):
            raise OSError(errno.ENOSPC, "full")
    assert ".moiety-draft" not in refused.value.detail
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        rewrite(pipe, "figures")
        assert os.read(reader, 100) == b"figures"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("before")
    fill(tmp_path / "filled", "before")
    with files_of_at_most(4):
        for write in (
            lambda: rewrite(old, "x" * 5000),
            lambda: write_new((tmp_path / "a", "x", 0o600), (tmp_path / "b", "x" * 5000, 0o600)),
            lambda: fill(tmp_path / "new", "x" * 5000),
            lambda: fill(tmp_path / "filled", "x" * 5000),
        ):
            with pytest.raises(StorageFull, match=r"no space left for .*; nothing was changed: free space"):
                write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["filled", "old"]
    assert old.read_text() == "before"
    assert content(tmp_path / "filled") == dict.fromkeys(NAMES, "before")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("folder", "it is a folder|something else is there"),
        ("file/in", ".*file is no folder"),
        ("x" * 300, "File name too long"),
    ],
)
def test_one_line_says_why_a_file_cannot_be_there(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=f"cannot be written: ({why}).*; nothing was changed: name another"):
        rewrite(tmp_path / name, "x")
    with pytest.raises(ConfigurationError, match="exists already" if name == "folder" else why):
        write_new((tmp_path / name, "x", 0o600))


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    rewrite(tmp_path / "one" / "deep" / "file", "x")
    write_new((tmp_path / "two" / "deep" / "file", "x", 0o600))
    assert [path.read_text() for path in sorted(tmp_path.glob("*/deep/*"))] == ["x", "x"]


def test_a_folder_that_is_there_stays_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir(mode=0o750)
    (here / "lost+found").mkdir()  # as every new disk has it
    inode, mode = here.stat().st_ino, here.stat().st_mode
    monkeypatch.chdir(here)
    for text in ("one", "two"):
        fill(Path(), text)
        (here / "lost+found").rmdir() if text == "one" else None
        assert content(here) == dict.fromkeys(NAMES, text)
        assert (Path.cwd().stat().st_ino, here.stat().st_mode) == (inode, mode)


def test_a_name_that_is_not_made_again_goes(tmp_path: Path) -> None:
    fill(tmp_path / "out", "one")
    with filling(tmp_path / "out", "last", NAMES, "mark") as new:
        (new / "last").write_text("two")
    assert content(tmp_path / "out") == {"last": "two"}


@pytest.mark.parametrize("other", ["thesis", "first", "folder", "link"])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, other: str) -> None:
    if other != "first":  # names alone do not make a folder this command's
        (tmp_path / "mark").write_text("")
    match other:
        case "folder":
            (tmp_path / "first").mkdir()
        case "link":
            (tmp_path / "first").symlink_to("mark")
        case _:
            (tmp_path / other).write_text("keep")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="did not make: name another folder"):
        fill(tmp_path, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_crash_in_between_never_looks_whole_and_is_mended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process is gone: nothing is tidied up."""

    def killed_after(calls: int) -> None:
        replace, left = os.replace, iter(range(calls))

        def until(source: Path, target: Path) -> None:
            if next(left, None) is None:
                raise Killed
            replace(source, target)

        monkeypatch.setattr(os, "replace", until)
        monkeypatch.setattr("host.output_files.shutil.rmtree", lambda *_, **__: None)

    for calls in range(len(NAMES)):
        fill(tmp_path / "out", "old")
        with monkeypatch.context() as monkeypatch:
            killed_after(calls)
            with pytest.raises(Killed):
                fill(tmp_path / "out", "new")
        assert not (tmp_path / "out" / "last").exists()
        fill(tmp_path / "out", "again")
        assert content(tmp_path / "out") == dict.fromkeys(NAMES, "again")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_mounted_volume_is_filled(volume: Path) -> None:
    fill(volume, "one")
    fill(volume, "two")
    assert content(volume) == dict.fromkeys(NAMES, "two")


def test_a_read_only_or_full_volume_is_said(volume: Path) -> None:
    (volume / "fill").write_bytes(bytes(2**15))
    for write in (lambda: rewrite(volume / "x", "x" * 2**16), lambda: fill(volume / "new", "x" * 2**16)):
        with pytest.raises(StorageFull):
            write()
    assert [path.name for path in volume.iterdir()] == ["fill"]
    subprocess.run(["mount", "-o", "remount,ro", str(volume)], check=True)
    for path in (volume / "x", volume / "fill"):
        with pytest.raises(ConfigurationError, match="its disk is read-only"):
            rewrite(path, "x")
    with pytest.raises(ConfigurationError, match="its disk is read-only"):
        fill(volume / "new", "x")


@pytest.mark.parametrize("name", ["folder", "file/in"])
def test_a_wrong_place_is_said_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    assert writable(None) is None
    for good in ("file", "new/deep"):
        assert writable(tmp_path / good) == tmp_path / good
    assert (tmp_path / "file").read_text() == "kept"
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(MoietyError, match="cannot be written"):
        writable(tmp_path / name)


def test_a_file_mounted_alone_is_written_in_place(tmp_path: Path) -> None:
    """A rename over it gives EBUSY; seen with a real mount where there is one."""
    file, mounted = tmp_path / "file", tmp_path / "mounted"
    file.write_text("before, and longer")
    mounted.write_text("")
    mount = ["mount", "--bind", str(file), str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            os.replace(tmp_path / "file", mounted)
        rewrite(mounted, "after")
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)
    assert file.read_text() == "after"
