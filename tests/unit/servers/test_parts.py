"""Randomness, files, batches, changes: the small parts of a server."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import NoReturn

import pytest

from host.randomness import SystemRandomness, server_randomness
from protocol.errors import StorageFull
from protocol.ot.session import BATCH_ELEMENTS
from servers import event_loop
from servers.correlations import in_batches, zero_key
from servers.event_loop import Changes, wait_until, wait_up_to
from servers.store.files import ShareFiles, file_name


def test_seeded_bytes_depend_on_seed_party_and_label_alone() -> None:
    one, two = server_randomness(7, "operator-a"), server_randomness(7, "operator-a")
    two.bytes(32, "something else first")
    assert one.bytes(32, "nonce") == two.bytes(32, "nonce")
    others = {
        server_randomness(8, "operator-a").bytes(32, "nonce"),
        server_randomness(7, "operator-b").bytes(32, "nonce"),
    }
    assert len(others | {one.bytes(32, "nonce"), one.bytes(32, "mask")}) == 4


def test_system_bytes_differ() -> None:
    system = server_randomness(None, "operator-a")
    assert system.bytes(32, "nonce") != system.bytes(32, "nonce")
    assert isinstance(system, SystemRandomness)


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    files = ShareFiles(tmp_path / "shares", 0)
    draft = files.draft()
    draft.write(b"abc")
    draft.write(memoryview(b"def"))
    assert not files.path("kept").exists()
    draft.keep("kept")
    assert b"".join(files.read("kept")) == b"abcdef"
    dropped = files.draft()
    dropped.write(b"x")
    dropped.discard()
    left = files.draft()
    left.write(b"left by a crash")
    assert files.sweep({"kept"}) == 1
    assert [path.name for path in (tmp_path / "shares").iterdir()] == ["kept"]
    files.delete(["kept", "kept"])
    assert not files.path("kept").exists()
    left.discard()


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ShareFiles(tmp_path, 2**60)
    with pytest.raises(StorageFull, match="0 are free"):
        files.require_room(1)
    draft = files.draft()

    def full(_descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageFull, match="disk is full"):
        draft.keep("never")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_counts_once_its_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """The second of two requests to complete an upload does not rest on what failed for the first."""
    files, content, synced = ShareFiles(tmp_path / "shares", 0), tmp_path / "content", list[Path]()
    content.write_bytes(b"abc")

    def fails(folder: Path) -> NoReturn:
        synced.append(folder)
        raise OSError(errno.EIO, "no answer")

    def no_links(self: Path, _target: Path) -> NoReturn:
        raise OSError(errno.EPERM if content.exists() else errno.ENOENT, "no links")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    monkeypatch.setattr("servers.store.files.sync_folder", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            files.also(content, "kept")
    monkeypatch.setattr("servers.store.files.sync_folder", synced.append)
    files.also(content, "kept")
    assert synced == [tmp_path / "shares"] * 3
    assert files.path("kept").read_bytes() == b"abc"


def test_file_names_cannot_be_confused() -> None:
    assert file_name("a", "bc") != file_name("ab", "c")
    assert len(file_name("share", 1, 2)) == 64


def test_batches_hold_everything_in_order_and_stay_small() -> None:
    small, large = (1,) * 40, (BATCH_ELEMENTS * 2,)
    wanted = [large, *[(2048, *small)] * 40, *[small] * 3]
    batches = in_batches(wanted)
    assert [lengths for batch in batches for lengths in batch] == wanted
    assert all(len(batch) == 1 or sum(map(sum, batch)) <= BATCH_ELEMENTS for batch in batches)
    assert in_batches([]) == []


def test_the_zero_sharing_key_needs_both_parts() -> None:
    a, b = b"a" * 32, b"b" * 32
    assert len({zero_key(a, b), zero_key(b, a), zero_key(a, a)}) == 3


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def scenario() -> tuple[bool, bool, bool]:
        changes = Changes()
        event, other = changes.next("study"), changes.next("other")
        changes.notify("study")
        return await wait_up_to(event, 5), await wait_up_to(other, 0.01), await wait_up_to(changes.next("study"), -1)

    assert asyncio.run(scenario()) == (True, False, False)


def test_a_wait_until_a_time_notices_that_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_CLOCK_LOOKED_AT_EVERY_S", 0.01)
    shown = iter([0.0, 0.0, 4000.0])

    async def scenario() -> tuple[bool, bool]:
        event = asyncio.Event()
        late = await wait_until(event, 3600.0, lambda: next(shown))
        event.set()
        return late, await wait_until(event, 3600.0, lambda: 0.0)

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == (False, True)
