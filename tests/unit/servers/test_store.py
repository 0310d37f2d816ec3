"""Records kept between changes, databases without room, files without a row, files in pieces."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Row, select, text
from sqlalchemy.exc import DatabaseError, OperationalError

from protocol.errors import StorageFull, Unavailable
from protocol.messages.control import RoundState
from servers.background.processes import Strays
from servers.scale.passes import OWNER, Shards
from servers.scale.shares import ClusterShares
from servers.store import files as module
from servers.store import tables as t
from servers.store.cache import Prepared, ReadRows
from servers.store.database import explained, open_engine
from servers.store.files import PIECE_BYTES, FilePieces, ShareFiles
from servers.store.object_storage import FolderStorage
from servers.store.shares import Shares
from servers.store.sql import SqlStore
from tests.contract.records import KEY, RECORD, ROUND, contribution
from tests.kit.databases import new_database
from tests.kit.present import present

# --- read rows --------------------------------------------------------------------------------------------------------

STATEMENT = Prepared(select(t.boots))
VALUES = {"name": "x"}


def test_a_record_is_given_back_until_something_changes() -> None:
    rows = ReadRows(kept=True)
    found, seen = rows.look(STATEMENT, VALUES)
    assert found is None
    rows.keep(seen, STATEMENT, VALUES, "record")
    assert rows.look(STATEMENT, VALUES)[0] == "record"
    assert rows.look(STATEMENT, {"name": "y"})[0] is None
    rows.forget()
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_what_was_read_before_a_change_is_not_kept_after_it() -> None:
    rows = ReadRows(kept=True)
    _, seen = rows.look(STATEMENT, VALUES)
    rows.forget()
    rows.keep(seen, STATEMENT, VALUES, "older record")
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_nothing_is_kept_where_others_write() -> None:
    rows = ReadRows(kept=False)
    rows.keep(rows.look(STATEMENT, VALUES)[1], STATEMENT, VALUES, "record")
    assert rows.look(STATEMENT, VALUES)[0] is None


def test_no_more_is_kept_than_a_request_reads() -> None:
    rows = ReadRows(kept=True)
    for number in range(1000):
        values = {"name": str(number)}
        rows.keep(rows.look(STATEMENT, values)[1], STATEMENT, values, number)
    kept = [number for number in range(1000) if rows.look(STATEMENT, {"name": str(number)})[0] is not None]
    assert 0 < len(kept) <= 64


class Counted(SqlStore):
    """Counts looks at the database."""

    looks = 0

    def _first(self, statement: Prepared, values: object) -> Row[tuple[object]] | None:
        self.looks += 1
        return super()._first(statement, values)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counted]:
    made = Counted(new_database(tmp_path / "store.db"), lambda _study: None)
    made.add_study(RECORD)
    made.add_round(ROUND)
    yield made
    made.close()


def test_a_contribution_leaves_what_was_read_as_it_was(store: Counted) -> None:
    store.add_contribution(contribution("site-a", "a"), RoundState.COLLECTING)
    study, round_ = store.study(RECORD.digest), store.current_round(RECORD.digest)
    looks = store.looks
    store.add_contribution(contribution("site-b", "b"), RoundState.COLLECTING)
    assert (store.study(RECORD.digest), store.current_round(RECORD.digest)) == (study, round_)
    assert store.looks == looks


def test_the_first_contribution_is_seen(store: Counted) -> None:
    before = store.current_round(RECORD.digest)
    cursor = store.study(RECORD.digest).cursor
    assert before is not None
    store.add_contribution(contribution("site-a", "a"), RoundState.COLLECTING)
    after = present(store.current_round(RECORD.digest))
    assert (before.state, after.state) == (ROUND.state, RoundState.COLLECTING)
    assert store.study(RECORD.digest).cursor == cursor + 1


def test_a_changed_round_and_a_changed_study_are_read_again(store: Counted) -> None:
    assert store.round(KEY) == store.current_round(RECORD.digest) == store.latest_attempt(RECORD.digest, 1)
    store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
    for found in (store.round(KEY), store.current_round(RECORD.digest), store.latest_attempt(RECORD.digest, 1)):
        assert found is not None
        assert found.state is RoundState.SKIPPED
    assert store.study(RECORD.digest).absent_in_a_row == 0
    store.change_study(RECORD.digest, lambda s: replace(s, absent_in_a_row=2))
    assert store.study(RECORD.digest).absent_in_a_row == 2
    found_by_name = present(store.study_named(RECORD.name))
    assert found_by_name.absent_in_a_row == 2


def test_what_fails_in_the_middle_is_read_again(store: Counted) -> None:
    before = store.round(KEY)

    def broken(_record: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        store.change_round(KEY, broken)  # type: ignore[arg-type]
    looks = store.looks
    assert store.round(KEY) == before
    assert store.looks == looks + 1


# --- full database ----------------------------------------------------------------------------------------------------


def refused(folder: Path, *statements: str) -> DatabaseError:
    engine = open_engine(f"sqlite:///{folder / 'server.db'}")
    *before, last = map(text, statements)
    with engine.begin() as connection:
        for statement in before:
            connection.execute(statement)
        with pytest.raises(OperationalError) as error:
            connection.execute(last)
    engine.dispose()
    return error.value


def test_sqlite_without_room_is_full(tmp_path: Path) -> None:
    filled = "INSERT INTO kept VALUES (zeroblob(100000))"
    error = refused(tmp_path, "CREATE TABLE kept (x)", "PRAGMA max_page_count = 10", filled)
    assert isinstance(explained(error), StorageFull)


def test_postgresql_without_room_is_full() -> None:
    full = pytest.importorskip("psycopg").errors.DiskFull("could not extend file")
    assert isinstance(explained(OperationalError("INSERT", {}, full)), StorageFull)


def test_a_table_whose_name_says_full_is_not(tmp_path: Path) -> None:
    error = explained(refused(tmp_path, "SELECT * FROM full_house"))
    assert type(error) is Unavailable


# --- strays -----------------------------------------------------------------------------------------------------------


def test_what_has_no_row_at_two_looks_and_was_not_written_to_goes(tmp_path: Path) -> None:
    files, named = ShareFiles(tmp_path / "shares", 0), set[str]()
    store: Any = SimpleNamespace(files=lambda: named)
    server: Any = SimpleNamespace(files=files, store=store, shares=Shares(store, files))
    for name in ("named", "stored later", "left behind", "being written"):
        files.path(name).write_bytes(b"share")
    named.add("named")
    strays = Strays(server)
    assert strays.look() == 0
    named.add("stored later")
    os.utime(files.path("being written"), (1.0, 1.0))
    assert strays.look() == 1
    assert set(files.written()) == {"named", "stored later", "being written"}
    assert strays.look() == 1
    assert set(files.written()) == {"named", "stored later"}


def test_the_storage_of_a_cluster_too(tmp_path: Path) -> None:
    storage, named = FolderStorage(tmp_path / "storage"), set[str]()
    files, none = ShareFiles(tmp_path / "shares", 0, storage=storage), cast(Any, None)
    shards = Shards(none, storage, none, tmp_path / "sums", range_elements=1, shares_a_task=1)
    store: Any = SimpleNamespace(files=lambda: named)
    server: Any = SimpleNamespace(files=files, store=store, shares=ClusterShares(store, files, shards))
    for name in (OWNER, "aa", "bb"):
        storage.write(name, b"share")
    strays = Strays(server)
    assert strays.look() == 0
    named.add("bb")
    assert strays.look() == 1
    assert set(storage.names()) == {OWNER, "bb"}


# --- file pieces ------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system answers that has the whole file in memory; the one of temporary files may be none that can."""

    def preadv(file: int, rooms: Sequence[memoryview], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        found = os.pread(file, len(rooms[0]), offset)
        rooms[0][: len(found)] = found
        return len(found)

    monkeypatch.setattr(os, "preadv", preadv)


def written(folder: Path, size: int) -> tuple[Path, bytes]:
    content = os.urandom(size)
    (folder / "file").write_bytes(content)
    return folder / "file", content


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.usefixtures("in_memory")
def test_all_of_it_in_order(tmp_path: Path, size: int, asks: bool) -> None:
    path, content = written(tmp_path, size)
    pieces, taken = FilePieces(path), list[bytes]()
    assert not pieces.at_hand()  # it is not even open
    while (piece := next(pieces, None)) is not None:
        taken.append(bytes(piece))
        assert not asks or (pieces.at_hand() and pieces.at_hand())
    assert b"".join(taken) == content
    assert all(len(piece) == PIECE_BYTES for piece in taken[:-1])
    assert next(pieces, None) is None
    assert pieces.at_hand()


@pytest.mark.parametrize("found", ["nothing", "a part", "no such flag"])
def test_what_is_not_in_memory_is_read_when_it_is_taken(
    tmp_path: Path, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = written(tmp_path, 2 * PIECE_BYTES)

    def preadv(file: int, rooms: Sequence[memoryview], offset: int, flags: int) -> int:
        if found == "nothing":
            raise BlockingIOError(errno.EAGAIN, "on its way from the disk")
        return len(rooms[0]) // 2

    monkeypatch.setattr(os, "preadv", preadv)
    if found == "no such flag":
        monkeypatch.setattr(module, "_WITHOUT_WAITING", None)
    pieces = FilePieces(path)
    first = bytes(next(pieces))
    assert not pieces.at_hand()
    assert first + bytes(next(pieces)) == content


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(FilePieces(tmp_path / "none"))


@pytest.mark.usefixtures("in_memory")
def test_a_file_that_is_deleted_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    path, content = written(tmp_path, PIECE_BYTES + 5)
    pieces = FilePieces(path)
    first = bytes(next(pieces))
    path.unlink()
    assert pieces.at_hand()
    assert first + b"".join(pieces) == content
