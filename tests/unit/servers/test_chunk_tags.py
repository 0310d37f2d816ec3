"""Tags of stored chunks: every reader notices every byte that changed, whatever it asks for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import element_bytes, packed, unpacked
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import ShareAltered
from protocol.messages.control import ShareKind
from protocol.parameters import RingBits
from servers.rounds import sketches
from servers.rounds.ciphertexts import stored_chunks
from servers.store.files.chunk_tags import ENCRYPTED, ChunkTags, Layout, Tagger, layout_of
from servers.store.files.stored_vector import Scratch, StoredVector, read_whole

STEP = 2**15
D = 2 * STEP + 77


def tags_of(content: bytes, layout: Layout, piece: int = 10**9) -> ChunkTags:
    tagger = Tagger(layout)
    for at in range(0, len(content), piece):
        tagger.write(content[at : at + piece])
    assert tagger.finish() == tagger.finish()
    return ChunkTags("hospital-1", len(content), layout, tagger.finish())


@pytest.mark.parametrize("layout", [layout_of(kind) for kind in ShareKind] + [ENCRYPTED, Layout(5, 16)])
@pytest.mark.parametrize("piece", [7919, 2**18, 10**9])
def test_tags_do_not_depend_on_the_pieces_and_each_chunk_has_its_own(layout: Layout, piece: int) -> None:
    content = np.random.default_rng(1).bytes(min(3 * layout.step + 9, 2**20))
    tags = tags_of(content, layout, piece)
    tags.require(0, content)
    part = tags.within(layout.step, 2 * layout.step)
    begin, end = tags.cover(layout.step, 2 * layout.step)
    part.require(begin, content[begin:end])
    with pytest.raises(ShareAltered, match="'hospital-1'"):
        part.require(0, content[: layout.first])
    with pytest.raises(ShareAltered):
        tags.require(0, content[: layout.first - 1])


@pytest.mark.parametrize("bits", [64, 48])
@pytest.mark.parametrize("reads", [(0, D), (STEP, D), (STEP - 5, STEP + 5), (0, STEP), (D - 1, D), (7, 9)])
def test_a_vector_is_read_anywhere_and_never_as_anything_else(
    tmp_path: Path, bits: RingBits, reads: tuple[int, int]
) -> None:
    vector = np.random.default_rng(2).integers(0, 2**47, D, dtype=np.uint64)
    content, path, (start, stop) = bytes(packed(vector, bits)), tmp_path / "share", reads
    path.write_bytes(content)
    kind = ShareKind.vector_of(bits)
    stored = StoredVector(path, D, bits, tags_of(content, layout_of(kind)))
    stored.require_whole()
    assert np.array_equal(stored.elements(start, stop, Scratch()), vector[start:stop])
    swapped = bytearray(content)
    swapped[element_bytes(bits) * start] ^= 1
    path.write_bytes(swapped)
    with pytest.raises(ShareAltered, match="'hospital-1'"):
        stored.elements(start, stop, Scratch())
    before = StoredVector(path, D, bits, ChunkTags("hospital-1", len(content), layout_of(kind), None))
    expected = unpacked(bytes(swapped), D, bits)[start:stop]
    assert np.array_equal(before.elements(start, stop, Scratch()), expected), "an earlier release stored no tags"
    path.write_bytes(content[:-1])
    for one in (stored, before):
        with pytest.raises(ShareAltered):
            one.require_whole()
        with pytest.raises(ShareAltered):
            one.elements(start, D, Scratch())


def test_a_seed_and_a_whole_file(tmp_path: Path) -> None:
    path, seed = tmp_path / "share", bytes(range(32))
    tags = tags_of(seed, layout_of(ShareKind.SEED))
    with pytest.raises(ShareAltered):
        read_whole(path, tags)
    path.write_bytes(seed)
    assert read_whole(path, tags) == seed
    with path.open("rb") as file:
        tags.require_file(file)
    for other in (bytes(32), seed[:-1], seed + b"x"):
        path.write_bytes(other)
        with pytest.raises(ShareAltered):
            read_whole(path, tags)
        with path.open("rb") as file, pytest.raises(ShareAltered):
            tags.require_file(file)


def readers(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Everything that reads a stored share of a server without a cluster."""
    vector = tags_of(bytes(8 * D), layout_of(ShareKind.vector_of(64)))
    stored = StoredVector(path, D, 64, vector)
    monkeypatch.setattr(sketches, "tags_of", lambda record: vector)
    one = SimpleNamespace(site="hospital-1", file="share", wrapped_key=None)
    server: Any = SimpleNamespace(
        store=SimpleNamespace(contributions=lambda key: [one]), files=SimpleNamespace(path=lambda name: path)
    )
    record: Any = SimpleNamespace(key=None, chosen=SimpleNamespace(message=SimpleNamespace(sites=["hospital-1"])))
    chunk = stored_chunks(path, tags_of(bytes(9), layout_of(ShareKind.CIPHERTEXT)), CkksParameters(), 1)
    return [
        stored.require_whole,
        lambda: stored.elements(0, 9, Scratch()),
        lambda: read_whole(path, tags_of(bytes(32), layout_of(ShareKind.SEED))),
        lambda: chunk(0),
        lambda: sketches.require_unaltered(server, record),
    ]


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("instead", [Path.mkdir, loop])
def test_what_cannot_be_read_is_not_what_was_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: Callable[[Path], None]
) -> None:
    path = tmp_path / "share"
    instead(path)
    for read in readers(path, monkeypatch):
        with pytest.raises(ShareAltered, match="'hospital-1'"):
            read()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_disk_that_fails_ends_the_round_and_a_machine_that_is_busy_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    for name in ("open", "stat", "read_bytes"):
        monkeypatch.setattr(Path, name, fails)
    expected: type[Exception] = ShareAltered if code in (errno.EIO, errno.EACCES) else OSError
    for read in readers(tmp_path / "share", monkeypatch):
        with pytest.raises(expected):
            read()


def test_no_two_shares_have_one_key() -> None:
    layout = layout_of(ShareKind.SEED)
    assert tags_of(bytes(32), layout).kept != tags_of(bytes(32), layout).kept
