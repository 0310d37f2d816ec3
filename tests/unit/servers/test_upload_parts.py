"""Parts of an upload: opened as they come, once; taken up after a restart, as far as they are durable."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from host.files import has_writer, write_durably
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES
from protocol.errors import BadSignature, CommitmentMismatch, MalformedMessage, StorageFull, Unavailable
from protocol.messages.bodies import Part, PartSealing, content_bytes, share_parts
from protocol.rounds.states import RoundKey
from protocol.sharing import Side, vector_side
from servers.rounds.uploads import sweep
from servers.store import upload_parts
from servers.store.upload_parts import Awaited, NewCheck, ShareInParts, Upload, UploadParts
from tests.unit.client_agent.federation import CONTRIBUTORS, ROSTER, announcement, operator_keys

SITE, NEIGHBOUR = CONTRIBUTORS[:2]
LENGTH = 2 * CHUNK_BYTES // 8 + 100
WAITS_S = 60.0
"""Far above what anything here takes; reached only by code that waits for what it must not wait for."""
CONTENT = np.random.default_rng(1).bytes(8 * LENGTH)
KEY = RoundKey("ab" * 32, 3, 1)


def part_of(length: int = LENGTH) -> Part:
    return share_parts(announcement(), 1, SITE, ROSTER, length)[vector_side(ROSTER.place(SITE))]


def looks(write: Callable[[bytes], None]) -> NewCheck:
    """A check that does this with every piece."""
    check: Any = SimpleNamespace(write=write, finish=lambda: None)
    return lambda keep: check


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "no space")


def awaited(length: int = LENGTH, check: NewCheck | None = None) -> Awaited:
    part = part_of(length)
    return Awaited(operator_keys(part.side).sealing, part, content_bytes(part.kind, part.length), check)


@dataclass(frozen=True)
class Sent:
    """A site's upload and its digest; ``units`` are the head and the chunks, each with its place."""

    message: bytes
    digest: bytes

    @property
    def units(self) -> list[tuple[int, bytes]]:
        of, found, at = awaited(), list[tuple[int, bytes]](), 0
        while at < len(self.message):
            found.append((at, self.message[at : of.unit_end(at)]))
            at = of.unit_end(at)
        return found


def sealed(key: bytes = b"k" * 32, promised: bytes | None = None, length: int = LENGTH) -> Sent:
    part = part_of(length)
    one = PartSealing(part, operator_keys(part.side).sealing.public, key, b"s" * 32)
    body = b"".join(one.sealed_content([CONTENT[: 8 * length]]))
    head, digest = one.head({side: promised or one.commitment() for side in Side})
    return Sent(head + body, digest)


SENT = sealed()
WRITTEN = SENT.units
"""The head and the chunks of an honest upload, each with its place."""


def required(sent: Sent = SENT) -> Callable[[bytes], None]:
    def require(found: bytes) -> None:
        if found != sent.digest:
            raise BadSignature("another message")

    return require


def feed(share: ShareInParts, units: Sequence[tuple[int, bytes]]) -> None:
    for at, unit in units:
        share.take(at, unit)


def taken(folder: Path, count: int | None = None, sent: Sent = SENT) -> ShareInParts:
    share = ShareInParts(folder, awaited())
    feed(share, sent.units[:count])
    return share


def durable(folder: Path, count: int | None = None) -> ShareInParts:
    share = taken(folder, count)
    share.held_bytes()
    return share


@pytest.mark.parametrize("before", range(5))
def test_a_restart_anywhere_changes_nothing(tmp_path: Path, before: int) -> None:
    there = taken(tmp_path, before).held_bytes()
    assert there == sum(len(unit) for _, unit in WRITTEN[:before])
    again = ShareInParts(tmp_path, awaited())
    assert again.held_bytes() == there
    feed(again, WRITTEN[before:])
    header, _ = again.finish(required())
    assert header == awaited().part.require(header.canonical())
    assert again.content.read_bytes() == CONTENT
    assert b"".join(again.encrypted_body()) == SENT.message[awaited().head_bytes :]
    assert again.content_key == b"k" * 32
    assert again.held_bytes() == awaited().length == len(SENT.message)


def test_what_was_not_written_whole_counts_for_nothing(tmp_path: Path) -> None:
    share = taken(tmp_path, 3)
    assert share.held_bytes() == awaited().head_bytes + 2 * (CHUNK_BYTES + TAG_BYTES)
    os.truncate(share.content, CHUNK_BYTES + 7)
    again = ShareInParts(tmp_path, awaited())
    assert again.held_bytes() == awaited().head_bytes + CHUNK_BYTES + TAG_BYTES
    assert again.content.stat().st_size == CHUNK_BYTES
    (tmp_path / "head").write_bytes(b"x")
    assert ShareInParts(tmp_path, awaited()).held_bytes() == 0


def test_content_that_the_disk_lost_shows_at_the_end(tmp_path: Path) -> None:
    share = taken(tmp_path)
    assert share.held_bytes() == len(SENT.message)
    with share.content.open("r+b") as file:
        file.write(bytes(4096))
    with pytest.raises(BadSignature):
        ShareInParts(tmp_path, awaited()).finish(required())


def test_an_altered_chunk_is_sent_again_and_no_byte_is_taken_twice(tmp_path: Path) -> None:
    share = taken(tmp_path, 2)
    at, unit = WRITTEN[2]
    with pytest.raises(Unavailable, match="altered on its way"):
        share.take(at, unit[:-1] + bytes([unit[-1] ^ 1]))
    share.take(at, unit)
    with pytest.raises(Unavailable, match="here already"):
        share.take(at, unit)
    share.take(*WRITTEN[3])
    share.finish(required())
    assert share.content.read_bytes() == CONTENT


def test_a_head_that_is_refused_is_refused_at_the_end(tmp_path: Path) -> None:
    """Only the whole message's digest shows that it is the site's own; nothing of it is kept."""
    wrong = Sent(SENT.message.replace(b'"attempt":1', b'"attempt":2', 1), SENT.digest)
    share = taken(tmp_path, sent=wrong)
    assert share.held_bytes() == len(SENT.message)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadSignature):
        share.finish(required())
    with pytest.raises(MalformedMessage):
        taken(tmp_path, sent=Sent(b"x" * len(SENT.message), SENT.digest)).finish(lambda found: None)


def test_a_share_that_was_not_promised_is_refused(tmp_path: Path) -> None:
    sent = sealed(promised=b"p" * 32)
    with pytest.raises(CommitmentMismatch):
        taken(tmp_path, sent=sent).finish(required(sent))


def test_content_is_looked_at_again_after_a_restart(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def write(piece: bytes) -> None:
        seen.append(piece)
        if len(seen) > 3:
            raise MalformedMessage("no ciphertext")

    of = awaited(check=looks(write))
    share = ShareInParts(tmp_path, of)
    feed(share, WRITTEN[:2])
    assert share.held_bytes() == WRITTEN[2][0]
    again = ShareInParts(tmp_path, of)
    again.held_bytes()
    assert [len(piece) for piece in seen] == [CHUNK_BYTES] * 2
    feed(again, WRITTEN[2:])
    with pytest.raises(MalformedMessage, match="no ciphertext"):  # which the last chunk was
        again.finish(required())
    assert ShareInParts(tmp_path, of).held_bytes() == 0


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = taken(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        with pytest.raises(StorageFull):
            share.take(*WRITTEN[2])
    assert share.held_bytes() == WRITTEN[2][0]
    feed(share, WRITTEN[2:])
    share.finish(required())
    assert share.content.read_bytes() == CONTENT


def failing(name: str, code: int) -> Callable[..., None]:
    """A call of the system that does its work and then says that it failed."""
    works = getattr(os, name)

    def fail(handle: int) -> None:
        works(handle)
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize(
    ("name", "code"), [("fdatasync", errno.ENOSPC), ("fdatasync", errno.EIO), ("close", errno.EDQUOT)]
)
def test_what_could_not_be_made_durable_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, at_the_end: bool
) -> None:
    """Memory still has it, and nobody says a second time that the disk may have not."""
    share = taken(tmp_path, None if at_the_end else 3)
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing(name, code))
        with pytest.raises(OSError if code == errno.EIO else StorageFull):
            share.finish(required()) if at_the_end else share.held_bytes()
    assert share.held_bytes() == ShareInParts(tmp_path, awaited()).held_bytes() == 0
    feed(share, WRITTEN)
    share.finish(required())
    assert share.content.read_bytes() == CONTENT


def test_a_disk_that_fails_twice_in_a_row_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = taken(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        patched.setattr(os, "fdatasync", failing("fdatasync", errno.ENOSPC))
        with pytest.raises(StorageFull):
            share.take(*WRITTEN[2])
    assert share.held_bytes() == ShareInParts(tmp_path, awaited()).held_bytes() == 0


def test_what_a_killed_process_wrote_counts_once_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(tmp_path, 3)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing("fdatasync", errno.EIO))
        assert ShareInParts(tmp_path, awaited()).held_bytes() == 0
    assert ShareInParts(tmp_path, awaited()).held_bytes() == 0
    taken(tmp_path, 3)
    assert ShareInParts(tmp_path, awaited()).held_bytes() == WRITTEN[3][0]


def test_where_parts_begin_and_end() -> None:
    of, chunk = awaited(8 * CHUNK_BYTES * 20), CHUNK_BYTES + TAG_BYTES
    first = of.head_bytes + upload_parts.CHUNKS_OF_A_PART * chunk
    assert of.part_end(0) == of.part_end(of.head_bytes) == of.part_end(first - chunk) == first
    assert of.part_end(first) == first + upload_parts.CHUNKS_OF_A_PART * chunk
    for nowhere in (7, of.head_bytes + 1, first + 1, of.length, of.length + chunk):
        assert of.part_end(nowhere) is None
    assert awaited().part_end(0) == awaited().length


def uploads(folder: Path) -> UploadParts:
    return UploadParts(folder / "uploads")


def begin(held: UploadParts, upload: Upload) -> ShareInParts:
    share = held.share(upload, awaited())
    share.take(*WRITTEN[0])
    return share


UPLOAD = Upload(KEY, SITE, "cd" * 32, 10)


def test_another_digest_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    held, other = uploads(tmp_path), replace(UPLOAD, digest="ef" * 32)
    share = begin(held, UPLOAD)
    assert held.share(UPLOAD, awaited()) is share
    assert (held.begun(UPLOAD), held.begun(other)) == (True, False)
    begin(held, other)
    assert (held.begun(UPLOAD), held.begun(other)) == (False, True)
    with pytest.raises(Unavailable, match="given up"):  # whoever still sends it
        share.take(*WRITTEN[1])
    neighbour = replace(UPLOAD, site=NEIGHBOUR)
    begin(held, neighbour)
    held.drop(other)
    assert (held.begun(other), held.begun(neighbour)) == (False, True)


def test_only_one_attempt_is_kept(tmp_path: Path) -> None:
    held, later = uploads(tmp_path), replace(UPLOAD, key=RoundKey(KEY.study, 3, 2))
    begin(held, UPLOAD)
    begin(held, later)
    held.keep_only(KEY.study, later.key)
    assert (held.begun(UPLOAD), held.begun(later)) == (False, True)
    assert held.studies() == [KEY.study]
    assert uploads(tmp_path).share(later, awaited()).held_bytes() == awaited().head_bytes  # after a restart
    held.keep_only(KEY.study, None)
    assert not held.begun(later)
    held.keep_only("00" * 32, None)  # a study that there are none of


def test_who_drives_sweeps_the_uploads_of_processes_that_are_gone(tmp_path: Path) -> None:
    own, gone = uploads(tmp_path / "driver-1"), uploads(tmp_path / "upload-9")
    later, ended = replace(UPLOAD, key=RoundKey(KEY.study, 3, 2)), replace(UPLOAD, key=RoundKey("cd" * 32, 1, 1))
    for upload in (UPLOAD, later, ended):
        begin(gone, upload)
    begin(own, UPLOAD)
    digests = [("goes on", KEY.study), ("ended", ended.key.study)]
    store: Any = SimpleNamespace(
        study_digests=lambda: digests,
        current_round=lambda digest: SimpleNamespace(key=later.key if digest == KEY.study else ended.key),
        study=lambda digest: SimpleNamespace(state=SimpleNamespace(ended=digest == ended.key.study)),
    )
    everybodys = [tmp_path / name / "uploads" for name in ("driver-1", "upload-9")]
    server: Any = SimpleNamespace(uploads=own, uploads_of_all=everybodys, store=store, drives=False)
    sweep(server)
    assert [one.begun(UPLOAD) for one in (own, gone)] == [False, True]
    server.drives = True
    sweep(server)
    assert [gone.begun(one) for one in (UPLOAD, later, ended)] == [False, True, False]
    gone.keep_only(KEY.study, later.key)  # of its own it forgets what another process took away
    assert gone.share(UPLOAD, awaited()).held_bytes() == 0


def test_an_upload_whose_folder_another_process_took_away_begins_again(tmp_path: Path) -> None:
    held = uploads(tmp_path)
    feed(held.share(UPLOAD, awaited()), WRITTEN[:2])
    uploads(tmp_path).keep_only(KEY.study, None)  # as the driver's sweep does
    assert held.share(UPLOAD, awaited()).held_bytes() == 0
    assert begin(held, UPLOAD).held_bytes() == awaited().head_bytes


def test_nobody_waits_for_an_upload_that_is_taken_up_and_pushed_out_it_leaves_nothing(tmp_path: Path) -> None:
    """The event loop announces, closes and sweeps uploads while threads read gigabytes again after a restart."""
    started, goes_on = threading.Event(), threading.Event()
    waited: list[bool] = []

    def write(piece: bytes) -> None:
        started.set()
        waited.append(goes_on.wait(WAITS_S))

    before = uploads(tmp_path)
    feed(before.share(UPLOAD, awaited()), WRITTEN[:3])
    before.share(UPLOAD, awaited()).held_bytes()
    held, other = uploads(tmp_path), replace(UPLOAD, key=RoundKey("cd" * 32, 1, 1))
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(lambda: held.share(UPLOAD, awaited(check=looks(write))).held_bytes())
        assert started.wait(WAITS_S)
        begin(held, other)
        held.keep_only(other.key.study, other.key)
        held.drop(other)
        held.keep_only(KEY.study, None)
        assert not held.begun(UPLOAD)
        again = held.share(UPLOAD, awaited())
        first = threads.submit(lambda: again.take(*WRITTEN[0]))  # waits for the thread that is still at work there
        goes_on.set()
        with pytest.raises(Unavailable, match="given up"):
            late.result()
        first.result()
    assert waited == [True]
    feed(again, WRITTEN[1:])
    again.finish(required())
    assert again.content.read_bytes() == CONTENT
    assert {path.name for path in again.content.parent.iterdir()} == {"head", again.content.name}


@pytest.mark.parametrize("count", [0, 1])
def test_what_is_given_up_at_work_leaves_nothing_and_closes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    opened = list[int]()
    share = durable(tmp_path, count)
    works = write_durably if count == 0 else os.pwrite

    def given_up_meanwhile(*given: Any) -> Any:
        closing = threading.Thread(target=share.close, daemon=True)
        closing.start()
        closing.join(WAITS_S)
        opened.append(share._file or -1)
        return works(*given)

    place = "servers.store.upload_parts.write_durably" if count == 0 else "os.pwrite"
    with monkeypatch.context() as patched:
        patched.setattr(place, given_up_meanwhile)
        share.take(*WRITTEN[count])
    with pytest.raises(Unavailable, match="given up"):
        share.held_bytes()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


# --- final means final ------------------------------------------------------------------------------------------------


def test_what_was_pushed_out_writes_nothing_more_whoever_still_sends_it(tmp_path: Path) -> None:
    """A part that is held back comes when its upload's place, and later its very digest, is another object's."""
    held, other = uploads(tmp_path), sealed(key=b"o" * 32)
    late = held.share(UPLOAD, awaited())
    feed(late, other.units[:2])
    begin(held, replace(UPLOAD, digest="ef" * 32))
    again = held.share(UPLOAD, awaited())
    feed(again, WRITTEN[:3])
    for call in (lambda: late.take(*other.units[2]), lambda: late.take(*other.units[0]), late.held_bytes):
        with pytest.raises(Unavailable, match="given up"):
            call()
    with pytest.raises(Unavailable, match="given up"):
        late.finish(required(other))
    again.take(*WRITTEN[3])
    again.finish(required())
    with pytest.raises(Unavailable, match="given up"):
        late.take(*other.units[2])
    assert again.content.read_bytes() == CONTENT
    assert late.content != again.content


def test_what_is_whole_takes_nothing_more_and_what_has_two_names_is_never_written_again(tmp_path: Path) -> None:
    """A crash between the share's second name and its row: the upload begins anew, in another file."""
    stored = tmp_path / "stored"
    (tmp_path / "upload").mkdir()
    share = taken(tmp_path / "upload")
    share.finish(required())
    for at, unit in WRITTEN:
        with pytest.raises(Unavailable, match="here already"):
            share.take(at, unit)
    assert share.held_bytes() == len(SENT.message)
    stored.hardlink_to(share.content)
    again = ShareInParts(tmp_path / "upload", awaited())
    assert again.held_bytes() == 0
    feed(again, sealed(key=b"o" * 32).units)
    assert stored.read_bytes() == CONTENT


@pytest.mark.parametrize("harm", ["altered", "cut", "longer"])
def test_no_receipt_for_a_file_that_is_not_what_was_checked(tmp_path: Path, harm: str) -> None:
    share = durable(tmp_path)
    with share.content.open("r+b") as file:
        file.seek({"altered": CHUNK_BYTES + 9, "cut": 0, "longer": len(CONTENT)}[harm])
        file.truncate(CHUNK_BYTES) if harm == "cut" else file.write(b"altered")
    with pytest.raises(upload_parts.NotAsChecked, match="send them again"):
        share.finish(required())


def test_no_receipt_while_anybody_can_still_write_to_the_file(tmp_path: Path) -> None:
    share = durable(tmp_path)
    with share.content.open("r+b"):
        with share.content.open("rb") as file:
            if not has_writer(file):
                pytest.skip("no leases on this file system: what is written later is noticed where it is read")
        with pytest.raises(Unavailable, match="still open elsewhere"):
            share.finish(required())
    share.finish(required())


@pytest.mark.parametrize("leases", [True, False])
def test_a_refused_lease_counts_only_in_folders_where_leases_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: bool
) -> None:
    """NFS 4 refuses with EAGAIN whenever its server delegated nothing."""
    set_lease = 1024
    share = durable(tmp_path)

    def fcntl_there(file: Any, command: int, argument: int = 0) -> int:
        if (command, argument) == (set_lease, fcntl.F_RDLCK) and not (leases and file.name != str(share.content)):
            raise OSError(errno.EAGAIN, "no lease")
        return 0

    monkeypatch.setattr("host.files._SET_LEASE", set_lease)
    monkeypatch.setattr(fcntl, "fcntl", fcntl_there)
    if leases:
        with pytest.raises(Unavailable, match="still open elsewhere"):
            share.finish(required())
    else:
        share.finish(required())
    assert {path.name for path in tmp_path.iterdir()} == {"head", share.content.name}


def test_content_is_looked_at_before_it_is_written(tmp_path: Path) -> None:
    written: list[int] = []

    def write(piece: bytes) -> None:
        written.append(share.content.stat().st_size)
        if len(written) == 2:
            raise MalformedMessage("no ciphertext")

    share = ShareInParts(tmp_path, awaited(check=looks(write)))
    feed(share, WRITTEN)
    assert written == [0, CHUNK_BYTES]
    assert share.content.stat().st_size == CHUNK_BYTES


def test_an_upload_that_an_earlier_release_began_goes_on(tmp_path: Path) -> None:
    share = durable(tmp_path, 2)
    share.content.rename(tmp_path / "content")
    again = ShareInParts(tmp_path, awaited())
    assert again.held_bytes() == WRITTEN[2][0]
