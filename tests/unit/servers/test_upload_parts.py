"""Parts of an upload on disk: without a gap, one upload for each site and attempt, gone with the round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import StorageFull
from protocol.rounds.states import RoundKey
from servers.store.upload_parts import Upload, UploadParts

KEY = RoundKey("ab" * 32, 3, 1)
UPLOAD = Upload(KEY, "c1", "cd" * 32, 10)


def parts(folder: Path) -> UploadParts:
    return UploadParts(folder / "uploads", lambda size_bytes: None)


def test_what_is_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    parts(tmp_path).add(UPLOAD, 0, b"01234")
    again = parts(tmp_path)
    assert again.held_bytes(UPLOAD) == 5
    again.add(UPLOAD, 1, b"56789")
    assert b"".join(parts(tmp_path).pieces(UPLOAD)) == b"0123456789"


def test_what_lies_behind_a_gap_or_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    held = parts(tmp_path)
    held.add(UPLOAD, 0, b"01234")
    held.add(UPLOAD, 2, b"x")
    folder = held.paths(UPLOAD)[0].parent
    (folder / ".000001.tmp").write_bytes(b"56")
    assert held.held_bytes(UPLOAD) == 5


def test_another_digest_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    held, other = parts(tmp_path), replace(UPLOAD, digest="ef" * 32)
    held.add(UPLOAD, 0, b"01234")
    assert held.held_bytes(other) == 0
    held.add(other, 0, b"abc")
    assert (held.held_bytes(UPLOAD), held.held_bytes(other)) == (0, 3)
    neighbour = replace(UPLOAD, site="c2")
    held.add(neighbour, 0, b"1")
    held.drop(other)
    assert (held.held_bytes(other), held.held_bytes(neighbour)) == (0, 1)


def test_only_one_attempt_is_kept(tmp_path: Path) -> None:
    held, later = parts(tmp_path), replace(UPLOAD, key=RoundKey(KEY.study, 3, 2))
    held.add(UPLOAD, 0, b"0")
    held.add(later, 0, b"1")
    held.keep_only(KEY.study, later.key)
    assert (held.held_bytes(UPLOAD), held.held_bytes(later)) == (0, 1)
    assert held.studies() == [KEY.study]
    held.keep_only(KEY.study, None)
    assert held.held_bytes(later) == 0
    held.keep_only("00" * 32, None)  # a study that there are none of


def test_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    def full(size_bytes: int) -> None:
        raise StorageFull("no room")

    held = UploadParts(tmp_path / "uploads", full)
    with pytest.raises(StorageFull):
        held.add(UPLOAD, 0, b"0")
    assert held.held_bytes(UPLOAD) == 0
