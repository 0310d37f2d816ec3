"""Passes cut into ranges give the bits of one process; a restart, a late result and altered bytes change nothing."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.channel.sealing import encrypt_body
from protocol.errors import BrokenSeal, ConfigurationError, ProtocolViolation, ShareAltered, Unavailable
from servers.scale.passes import Here, Written, WrittenRanges
from servers.scale.ranges import Done, SketchDone, SumDone, SumTask, Task, WrappingKey, read_wrapping_key
from servers.store.object_storage import FolderStorage, open_storage
from tests.unit.servers.scale.stored import (
    BOUND,
    KEY_TEXT,
    MASK,
    PARAMETERS,
    SEEDED,
    SITES,
    STEP,
    WRAPPING,
    D,
    content_key,
    cut_by,
    here,
    masked_sum_of_one_process,
    require_bits,
    require_sum,
    sketches_of_one_process,
    sources,
    store_all,
    write_key,
)


class Watched:
    """Does ranges here, remembers which, and changes results on their way back."""

    def __init__(self, storage: FolderStorage) -> None:
        self._here = Here(storage, WRAPPING)
        self.did: list[int] = []
        self.most = 10**9
        self.also: list[Done] = []
        self.closed = False

    def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
        yield from self.also
        for done in self._here.do(tasks, over):
            if len(self.did) == self.most:
                raise Unavailable("the cluster is gone")
            self.did.append(done.start)
            yield done
            yield done

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "storage")


def test_sketches_and_masked_sums_have_the_bits_of_one_process(tmp_path: Path, storage: FolderStorage) -> None:
    stored, cut = store_all(storage), here(storage, tmp_path / "sums")
    require_bits(cut, stored)
    masked = cut.masked_sum(BOUND, stored, MASK, D)
    assert masked.elements(STEP - 3, STEP + 5).tobytes() == masked_sum_of_one_process()[STEP - 3 : STEP + 5].tobytes()
    unmasked = cut.sum(replace(BOUND, round=4), stored, D)
    assert np.array_equal(unmasked(5, D), sum(source(5, D) for source in sources()))
    assert np.array_equal(cut.source(stored[0])(STEP, D), sources()[0](STEP, D))


def test_small_models_are_their_own_sketch(tmp_path: Path, storage: FolderStorage) -> None:
    stored = [replace(one, length=D) for one in store_all(storage)]
    few = PARAMETERS.model_copy(update={"dimension": 2000})
    found = here(storage, tmp_path / "sums").sketches(BOUND, stored, few)
    assert [one.tobytes() for one in found] == [source(0, 2000).tobytes() for source in sources()]


def test_a_restart_does_only_what_is_not_written(tmp_path: Path, storage: FolderStorage) -> None:
    stored, first = store_all(storage), Watched(storage)
    first.most = 2
    begun = cut_by(first, storage, tmp_path / "sums")
    with pytest.raises(Unavailable, match="the cluster is gone"):
        begun.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    begun.close()
    assert first.closed
    with (next((tmp_path / "sums").iterdir())).open("ab") as file:
        file.write(b'{"start": 65')  # the crash came in the middle of a line
    second = Watched(storage)
    again = cut_by(second, storage, tmp_path / "sums")
    again.sweep([one.name for one in stored])
    found = again.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    assert (first.did, second.did) == ([0, STEP], [2 * STEP, 3 * STEP])
    assert found.tobytes() == masked_sum_of_one_process().tobytes()


def test_a_pass_that_failed_is_made_anew_by_whoever_asks_next(tmp_path: Path, storage: FolderStorage) -> None:
    stored, workers = store_all(storage), Watched(storage)
    workers.most = 2
    cut = cut_by(workers, storage, tmp_path / "sums")
    with pytest.raises(Unavailable):
        cut.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    workers.most = 10**9
    require_sum(cut, stored)
    assert workers.did == [0, STEP, 2 * STEP, 3 * STEP]
    assert cut.masked_sum(BOUND, stored, MASK, D) is cut.masked_sum(BOUND, stored, MASK, D)


def test_results_of_another_attempt_are_dropped(tmp_path: Path, storage: FolderStorage) -> None:
    stored, workers = store_all(storage), Watched(storage)
    other = replace(BOUND, attempt=2)
    task = SumTask(other, (stored[0],), 0, STEP, WRAPPING.wrap(MASK, SumTask(other, (), 0, 0, b"").mask))
    late = list(Here(storage, WRAPPING).do([task], threading.Event()))
    (one,) = late
    assert isinstance(one, SumDone)
    workers.also = [one, replace(one, bound=BOUND), SketchDone(other, 0, 0, b"", one.cost)]
    cut = cut_by(workers, storage, tmp_path / "sums")
    require_bits(cut, stored)


@pytest.mark.parametrize("harm", ["altered", "gone"])
def test_a_range_that_is_not_as_it_was_written_is_made_again(tmp_path: Path, storage: FolderStorage, harm: str) -> None:
    stored, workers = store_all(storage), Watched(storage)
    cut = cut_by(workers, storage, tmp_path / "sums")
    cut.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    (name,) = (one for one in storage.names() if one.endswith(f"{STEP:012d}"))
    storage.delete([name]) if harm == "gone" else storage.write(name, bytes(8 * STEP))
    again = cut_by(workers, storage, tmp_path / "sums")
    with pytest.raises(Unavailable, match="not what its worker wrote"):
        again.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    require_sum(again, stored)
    assert workers.did == [0, STEP, 2 * STEP, 3 * STEP, STEP]
    given_up = again.masked_sum(BOUND, stored, MASK, D)
    again.forget(BOUND.study)
    with pytest.raises(ProtocolViolation, match="its round is over"):
        given_up.elements(0, D)
    assert not list((tmp_path / "sums").iterdir())


def test_half_a_line_spoils_none_behind_it(tmp_path: Path) -> None:
    ranges = [Written(STEP * place, STEP * (place + 1), f"sum-{place}", "ab" * 32) for place in range(3)]
    kept = WrittenRanges(tmp_path / "sums")
    kept.add(BOUND, ranges[0])
    (path,) = (tmp_path / "sums").iterdir()
    with path.open("ab") as file:
        file.write(b'{"start": 65')
    kept.add(BOUND, ranges[1])
    kept.add(BOUND, ranges[2])
    assert list(kept.of(BOUND).values()) == ranges
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bytes(7) + b'{"start": 65' + lines[1] + b"5\n\xff\n" + lines[2])
    assert list(kept.of(BOUND).values()) == [ranges[0], ranges[2]]
    assert kept.named() == {"sum-0", "sum-2"}
    kept.drop(BOUND, 0)
    assert list(kept.of(BOUND).values()) == [ranges[2]]
    assert kept.forget(BOUND.study) == ["sum-2"]


def test_what_is_forgotten_is_gone_and_given_up(tmp_path: Path, storage: FolderStorage) -> None:
    stored = store_all(storage)
    cut = here(storage, tmp_path / "sums")
    masked = cut.masked_sum(BOUND, stored, MASK, D)
    masked.elements(0, D)
    cut.forget("another study")
    cut.forget(BOUND.study, kept=BOUND)
    assert masked.elements(0, 8).size == 8
    cut.forget(BOUND.study)
    assert sorted(storage.names()) == sorted(one.name for one in stored)
    assert not list((tmp_path / "sums").iterdir())
    assert masked.failed


def test_sketches_that_are_given_up_say_so(tmp_path: Path, storage: FolderStorage) -> None:
    stored, cut = store_all(storage), None

    class Slow(Here):
        def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
            for done in super().do(tasks, over):
                yield done
                assert cut is not None
                cut.forget(BOUND.study)

    cut = cut_by(Slow(storage, WRAPPING), storage, tmp_path / "sums")
    with pytest.raises(Unavailable, match="were given up"):
        cut.sketches(BOUND, stored, PARAMETERS)


def test_a_share_that_is_gone_or_wrapped_otherwise_is_no_sum(tmp_path: Path, storage: FolderStorage) -> None:
    stored = store_all(storage)
    cut = here(storage, tmp_path / "sums")
    with pytest.raises(BrokenSeal, match="another than the server's"):
        cut.masked_sum(BOUND, [replace(stored[0], wrapped_key=stored[2].wrapped_key)], MASK, D).elements(0, 8)
    storage.delete([stored[0].name])
    with pytest.raises(ShareAltered, match=stored[0].name):
        cut.masked_sum(BOUND, stored, MASK, D).elements(0, 8)


@pytest.mark.parametrize("site", range(SITES))
def test_a_share_that_was_swapped_under_its_own_key_is_never_used(
    tmp_path: Path, storage: FolderStorage, site: int
) -> None:
    """Its site knows the content key, so what it put there opens; the tags are under a key of the server's."""
    stored, cut = store_all(storage), here(storage, tmp_path / "sums")
    size = 32 if site == SEEDED else 8 * D
    storage.write(stored[site].name, b"".join(encrypt_body(content_key(site), [bytes(size)])))
    with pytest.raises(ShareAltered, match=stored[site].name):
        cut.sketches(BOUND, stored, PARAMETERS)
    with pytest.raises(ShareAltered, match=stored[site].name):
        cut.masked_sum(BOUND, stored, MASK, D).elements(0, D)
    with pytest.raises(ShareAltered, match=stored[site].name):
        cut.source(stored[site])(0, D)
    before = replace(stored[site], chunk_tags=None)  # as an earlier release stored it
    assert not cut.source(before)(STEP - 1, STEP + 1).any() or site == SEEDED


def test_a_wrapping_key_is_read_from_a_private_file_and_never_travels(tmp_path: Path) -> None:
    path = write_key(tmp_path)
    assert read_wrapping_key(path).unwrap(WRAPPING.wrap(b"secret", "one"), "one") == b"secret"
    with pytest.raises(TypeError, match="never leaves"):
        pickle.dumps(WRAPPING)
    assert KEY_TEXT not in repr(WRAPPING)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_wrapping_key(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigurationError, match="openssl rand -hex 32"):
        read_wrapping_key(path)
    with pytest.raises(BrokenSeal):
        WrappingKey(bytes(32)).unwrap(WRAPPING.wrap(b"secret", "one"), "one")


def test_ranges_are_read_from_what_fsspec_reads(tmp_path: Path) -> None:
    storage = open_storage(f"memory://moiety-{tmp_path.name}/a")
    assert storage.names() == []
    stored = store_all(storage)
    asked, read = list[int](), storage.read
    storage.read = lambda name, offset, size: asked.append(size) or read(name, offset, size)  # type: ignore[method-assign,func-returns-value]
    cut = here(storage, tmp_path / "sums")
    found = cut.sketches(BOUND, stored, PARAMETERS)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in sketches_of_one_process()]
    assert set(asked) == {storage.ahead_bytes}
    require_sum(cut, stored)
    (tmp_path / "draft").write_bytes(b"a share")
    storage.take_in(tmp_path / "draft", "kept")
    assert storage.read("kept", 2, 3) == b"sha"
    assert not (tmp_path / "draft").exists()
    cut.forget(BOUND.study)
    storage.delete(["kept", "never there"])
    assert sorted(storage.names()) == sorted(one.name for one in stored)
    with pytest.raises(ProtocolViolation, match="no file kept"):
        storage.read("kept", 0, 1)
    with pytest.raises(Unavailable, match=r"does not answer \(FileNotFoundError\)"):
        storage.take_in(tmp_path / "nothing", "kept")
    with pytest.raises(ConfigurationError, match="needs fsspec and its driver"):
        open_storage("nosuch://bucket/prefix")


def test_a_folder_takes_files_in_and_says_what_is_not_there(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/storage")
    (tmp_path / "draft").write_bytes(b"a share")
    storage.take_in(tmp_path / "draft", "kept")
    assert (storage.names(), storage.read("kept", 2, 100)) == (["kept"], b"share")
    assert not (tmp_path / "draft").exists()
    with pytest.raises(ProtocolViolation, match="no file lost"):
        storage.read("lost", 0, 1)
    with pytest.raises(Unavailable, match="the storage does not answer"):
        storage.take_in(tmp_path / "nothing", "kept")
    with pytest.raises(ConfigurationError, match=r"ray\.storage"):
        open_storage("relative/path")
