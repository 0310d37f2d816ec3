"""An update becomes two sealed shares; the bounds on lengths."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.journal import StudyJournal
from client_agent.study.contribution import (
    ContributionRecord,
    EncodedFile,
    encoded_path,
    journal_encoded,
    make_contribution,
    pieces_of,
    send_contribution,
)
from host.randomness import SeededRandomness, SystemRandomness
from protocol.arithmetic.fixed_point import decode
from protocol.arithmetic.ring import from_bytes
from protocol.channel.commitment import MessageDigest, check_commitment
from protocol.channel.sealing import SealedReader
from protocol.errors import BadSignature, ConfigurationError, TranscriptMismatch, Unavailable, UnusableUpdate
from protocol.messages import bodies as sealed
from protocol.messages.control import ContributionHeader, ShareKind
from protocol.protection.interface import AtSite, Encoded
from protocol.protection.shares import Shares
from protocol.sharing import SeedShare, Share, Side, VectorShare, vector_side
from tests.chunks import reconstruct
from tests.kit.present import present
from tests.unit.client_agent.federation import DIGEST, PARAMETERS, ROSTER, announcement, layered, operator_keys, study
from tests.unit.client_agent.uploads import UploadServer

# --- contribution -----------------------------------------------------------------------------------------------------

SITE = "c2"
AT = AtSite(layered(study()), SITE, ROSTER)
DIMENSION = PARAMETERS.dimension


@pytest.fixture
def journal(tmp_path: Path) -> StudyJournal:
    return StudyJournal(tmp_path, "unit")


@pytest.fixture
def update() -> np.ndarray:
    return np.random.default_rng(4).normal(size=DIMENSION).astype(np.float32) / 100


def encoded(update: np.ndarray, weight: float) -> Encoded:
    return Shares().encode(AT, announcement(), update, weight, bytes(32))


def encoded_file(update: np.ndarray, journal: StudyJournal) -> EncodedFile:
    path = encoded_path(journal, AT.study, announcement())
    assert path.name == "encoded.ring"
    journal_encoded(encoded(update, 0.5), path, 0.5, PARAMETERS.weight_grid)
    return EncodedFile(path, DIMENSION)


def made(update: np.ndarray, journal: StudyJournal, attempt: int = 1) -> ContributionRecord:
    encoded_file(update, journal)
    return make_contribution(AT, announcement(), attempt, SystemRandomness(), journal)


def digest_of(sealed: bytes) -> MessageDigest:
    taken = MessageDigest()
    taken.update(sealed)
    return taken


def opened(journal: StudyJournal, side: Side, attempt: int = 1) -> tuple[ContributionHeader, Share]:
    """As the server of that side opens it; the commitment is checked."""
    reader = SealedReader(operator_keys(side).sealing)
    data = (journal.attempt_folder(1, attempt) / f"{side}.sealed").read_bytes()
    plain = b"".join(sealed.open_body(reader, [data]))
    header = ContributionHeader.parse(reader.header or b"")
    committed = bytes.fromhex(header.commitment_a if side is Side.A else header.commitment_b)
    check_commitment(committed, present(reader.salt), present(reader.content_key), digest_of(data).body_hash())
    if header.share_kind is ShareKind.SEED:
        return header, SeedShare(plain, header.length)
    return header, VectorShare(from_bytes(plain, header.length))


def test_the_two_shares_make_the_weighted_clipped_update(update: np.ndarray, journal: StudyJournal) -> None:
    long = update * 300
    record = made(long, journal)
    (header_a, share_a), (header_b, share_b) = (opened(journal, side) for side in Side)
    clipped = long.astype(np.float64) * (PARAMETERS.clip_norm / np.linalg.norm(long.astype(np.float64)))
    error = np.abs(decode(reconstruct(share_a, share_b), PARAMETERS) - clipped * 0.5)
    # Stochastic rounding moves a coordinate by less than one ring unit. A norm sums D squares in float64, so clipped
    # coordinates, below 2^21 units, are off by less than (D + 4) 2^-53 of that.
    assert float(error.max()) < (1 + (DIMENSION + 4) * 2.0**-32) / PARAMETERS.scale
    assert isinstance(share_a, VectorShare) is (vector_side(ROSTER.place(SITE)) is Side.A)
    assert header_a.model_copy(update={"side": Side.B, "share_kind": header_b.share_kind}) == header_b
    assert header_a.announcement_digest == record.announcement_digest == announcement().digest()


def test_clipping_and_the_norm_are_reported(update: np.ndarray) -> None:
    short, long = encoded(update, 1.0), encoded(update * 300, 1.0)
    # the root of a float64 sum of D squares, in another order
    rounding = (DIMENSION + 4) * 2.0**-53
    assert not short.clipped
    assert short.norm == pytest.approx(float(np.linalg.norm(update.astype(np.float64))), rel=rounding)
    assert long.clipped
    assert long.norm == pytest.approx(PARAMETERS.clip_norm, rel=rounding)


def test_nan_names_the_layer(update: np.ndarray) -> None:
    update[950] = np.nan
    with pytest.raises(UnusableUpdate, match="layer 'bias': 1 of 100 values"):
        encoded(update, 1.0)


def test_an_attempt_is_sealed_once_and_a_new_attempt_afresh(update: np.ndarray, journal: StudyJournal) -> None:
    first = made(update, journal)
    bodies = [(journal.attempt_folder(1, 1) / f"{side}.sealed").read_bytes() for side in Side]
    assert made(update, journal) == first
    assert bodies == [(journal.attempt_folder(1, 1) / f"{side}.sealed").read_bytes() for side in Side]
    assert [digest_of(data).digest().hex() for data in bodies] == list(first.digests.values())
    made(update, journal, attempt=2)
    one, two = (reconstruct(opened(journal, Side.A, n)[1], opened(journal, Side.B, n)[1]) for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    seeds = [
        next(s.seed for s in (opened(journal, side, n)[1] for side in Side) if isinstance(s, SeedShare)) for n in (1, 2)
    ]
    assert seeds[0] != seeds[1]


class Disk:
    """Durable writes and replacements in their order: files and folders by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        real_sync, real_replace = os.fsync, os.replace

        def sync(handle: int) -> None:
            self.done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
            real_sync(handle)

        def replace(path: str, target: Path) -> None:
            self.done.append(("place", target.name))
            real_replace(path, target)

        monkeypatch.setattr("host.files.os.fsync", sync)
        monkeypatch.setattr("host.files.os.replace", replace)


def test_all_of_an_attempt_is_on_disk_before_it_is_in_place_and_the_record_is_last(
    update: np.ndarray, journal: StudyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent before the folder with record and parts is synced; the encoding is, with the attempt's folder."""
    journal.round_folder(1)
    disk = Disk(monkeypatch)
    record = made(update, journal)
    files = ["a.sealed", "b.sealed", "contribution.json"]
    assert disk.done == [
        ("sync", "encoded.ring.tmp"),
        ("place", "encoded.ring"),
        ("sync", "000001"),
        *(("sync", f"{name}.tmp") for name in files),
        *(("place", name) for name in files),
        ("sync", "attempt-01"),
    ]
    disk.done.clear()
    deliver(record, journal, UploadServer(SITE, Side.A), UploadServer(SITE, Side.B))
    for side in Side:
        synced = disk.done.index(("sync", f"receipt-{side}.json.tmp"))
        assert synced < disk.done.index(("place", f"receipt-{side}.json"))
    assert disk.done[-1] == ("sync", "attempt-01")
    assert len(disk.done) == 5


@pytest.mark.parametrize("lost", ["a.sealed", "b.sealed"])
def test_a_record_that_a_power_cut_left_without_its_parts_is_made_anew(
    update: np.ndarray, journal: StudyJournal, lost: str
) -> None:
    first = made(update, journal)
    (journal.attempt_folder(1, 1) / lost).unlink()
    second = made(update, journal)
    assert set(first.digests.values()).isdisjoint(second.digests.values())
    for side in Side:
        data = (journal.attempt_folder(1, 1) / f"{side}.sealed").read_bytes()
        assert digest_of(data).digest().hex() == second.digests[side]
    assert made(update, journal) == second


def test_an_attempt_whose_folder_could_not_be_synced_is_not_sent_before_it_is(
    update: np.ndarray, journal: StudyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.attempt_folder(1, 1)
    synced: list[Path] = []

    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as patched:
        patched.setattr("host.files.sync_folder", fails)
        with pytest.raises(OSError, match="no answer"):
            made(update, journal)
    sealed = (journal.attempt_folder(1, 1) / "a.sealed").read_bytes()
    monkeypatch.setattr("client_agent.study.contribution.sync_folder", synced.append)
    record = made(update, journal)
    assert (journal.attempt_folder(1, 1) / "a.sealed").read_bytes() == sealed
    assert digest_of(sealed).digest().hex() == record.digests[Side.A]
    assert synced == [journal.attempt_folder(1, 1)]


def test_one_receipt_is_durable_where_the_other_server_fails(
    update: np.ndarray, journal: StudyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, disk = made(update, journal), Disk(monkeypatch)
    with pytest.raises(Unavailable):
        deliver(record, journal, UploadServer(SITE, Side.A), UploadServer(SITE, Side.B, failures=1))
    assert disk.done == [("sync", "receipt-a.json.tmp"), ("place", "receipt-a.json"), ("sync", "attempt-01")]


def test_seeded_shares_are_reproducible(update: np.ndarray, tmp_path: Path) -> None:
    shares = []
    for name in ("one", "two"):
        own = StudyJournal(tmp_path, name)
        randomness = SeededRandomness.of_site(5, SITE)
        encoded_file(update, own)
        make_contribution(AT, announcement(), 1, randomness, own)
        shares.append(opened(own, Side.A)[1])
    assert isinstance(shares[0], SeedShare | VectorShare)
    np.testing.assert_array_equal(_elements(shares[0]), _elements(shares[1]))


def _elements(share: Share) -> np.ndarray:
    return reconstruct(share, VectorShare(np.zeros(DIMENSION, dtype=np.uint64)))


def test_chunks_of_the_file_are_pieces_of_the_vector(update: np.ndarray, journal: StudyJournal) -> None:
    source = encoded_file(update, journal)
    whole = source(0, DIMENSION)
    np.testing.assert_array_equal(source(3, 900), whole[3:900])
    assert b"".join(map(bytes, pieces_of(source.path, 8 * DIMENSION))) == whole.tobytes()
    with pytest.raises(ConfigurationError, match=f"ends before byte {8 * DIMENSION + 1}"):
        list(pieces_of(source.path, 8 * DIMENSION + 1))


def deliver(record: ContributionRecord, journal: StudyJournal, a: UploadServer, b: UploadServer) -> None:
    send_contribution(record, AT, DIGEST, {Side.A: a, Side.B: b}, journal)  # type: ignore[dict-item]


def test_a_lost_answer_is_followed_by_the_same_bytes(update: np.ndarray, journal: StudyJournal) -> None:
    record = made(update, journal)
    a, b = UploadServer(SITE, Side.A), UploadServer(SITE, Side.B, failures=1)
    with pytest.raises(Unavailable):
        deliver(record, journal, a, b)
    again = StudyJournal(journal.folder.parent.parent, "unit")  # as after a restart
    deliver(made(update, again), again, a, b)
    assert len(a.bodies) == 1
    assert len(b.bodies) == 2
    assert b.bodies[0] == b.bodies[1]


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (UploadServer(SITE, signer=Side.B), BadSignature),
        (UploadServer(SITE, changes={"attempt": 2}), TranscriptMismatch),
    ],
)
def test_a_wrong_receipt_is_refused(
    server: UploadServer, error: type[Exception], update: np.ndarray, journal: StudyJournal
) -> None:
    with pytest.raises(error):
        deliver(made(update, journal), journal, server, UploadServer(SITE, Side.B))
    assert not (journal.attempt_folder(1, 1) / "receipt-a.json").exists()
