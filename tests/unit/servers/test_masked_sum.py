"""The masked sum between the servers: framed or sealed, in pieces of any size, and everything that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from host.failpoints import Failpoints
from protocol.arithmetic.ring import Usage, expand, from_bytes, to_bytes
from protocol.channel.commitment import head_digest
from protocol.channel.keys import generate_sealing_key
from protocol.channel.sealing import sealed_head_length
from protocol.channel.signing import DigestField
from protocol.errors import AnnouncementMismatch, BadSignature, BrokenSeal, MalformedMessage
from protocol.messages import bodies as masked_sum_body
from protocol.messages.bodies import SECRET_BYTES
from protocol.messages.peer import MaskedSumHeader
from protocol.parameters import TAG_COORDINATES
from protocol.sharing import ChunkSource, chunk_source, split
from protocol.tags import VectorDigest
from servers.rounds.intake import Caller
from servers.rounds.masked_sum import SealedMaskedSum, masked_sum
from servers.store.files import Draft
from servers.store.records import RoundRecord
from servers.store.shares import CHUNK_ELEMENTS, Shares
from tests.unit.client_agent.federation import ROSTER

D = CHUNK_ELEMENTS + 77
RELEASE = "ab" * 32
HEADER = MaskedSumHeader(release_digest=RELEASE, length=D)
SEED, KEY = bytes(range(32)), generate_sealing_key(bytes(range(96)))
KEY_OF_NOISE = bytes(range(32, 64))
PARAMETERS: Any = SimpleNamespace(dimension=D, ring_bits=64)
RECORD: Any = SimpleNamespace(
    mask=SEED,
    announcement=SimpleNamespace(message=SimpleNamespace(tagged=False)),
    chosen=SimpleNamespace(message=SimpleNamespace(digest=lambda: RELEASE, sites=())),
)
TAGGED: Any = SimpleNamespace(**{**vars(RECORD), "announcement": SimpleNamespace(message=SimpleNamespace(tagged=True))})
WITHOUT_TAGS: Any = SimpleNamespace(dimension=D - TAG_COORDINATES, ring_bits=64)
X = np.arange(D, dtype=np.uint64) * np.uint64(2**40 + 3)
SEED_SHARE, VECTOR_SHARE = split(X, bytes(32))


class Held(Shares):
    """The receiving side holds the seed share twice, so its sum is not simply a share of X."""

    def summands(self, record: RoundRecord, length: int) -> Sequence[ChunkSource]:
        return [chunk_source(SEED_SHARE), chunk_source(SEED_SHARE)]


NONE: Any = None
SERVER: Any = SimpleNamespace(keys=SimpleNamespace(sealing=KEY), shares=Held(NONE, NONE))


@pytest.fixture
def draft(tmp_path: Path) -> Iterator[Draft]:
    made = Draft(tmp_path, Failpoints(), ())
    yield made
    made.discard()


def sent() -> bytes:
    """The other side's sum, masked: its vector share."""
    return to_bytes(VECTOR_SHARE.vector - expand(SEED, Usage.OUTPUT_MASK, D))


def output(draft: Draft) -> np.ndarray:
    draft.keep("output")
    return from_bytes((draft.path.parent / "output").read_bytes(), D)


def expected() -> np.ndarray:
    return X + expand(bytes(32), Usage.SHARE, D) - expand(SEED, Usage.OUTPUT_MASK, D)


def sealed(body: bytes, header: MaskedSumHeader = HEADER) -> bytes:
    return masked_sum_body.seal_body(header, iter([body]), KEY.public, bytes(SECRET_BYTES)).whole()


def caller(message: bytes, field: DigestField = DigestField.SEALED_HEAD) -> Caller:
    head = message[: sealed_head_length(len(HEADER.canonical()))]
    party = ROSTER.operator_a
    return Caller(party, head_digest(head), field)


def feed(intake: SealedMaskedSum, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        intake.feed(data[at : at + size])


def test_what_one_side_sends_is_its_masked_sum() -> None:
    double = SEED_SHARE
    total = expand(double.seed, Usage.SHARE, D) * np.uint64(2)
    pieces = b"".join(masked_sum(SERVER, RECORD, PARAMETERS))
    assert np.array_equal(from_bytes(pieces, D), total - expand(SEED, Usage.OUTPUT_MASK, D))


@pytest.mark.parametrize("size", [61, 1000, 2**20])
@pytest.mark.parametrize("fetched", [True, False], ids=["fetched", "sent"])
@pytest.mark.parametrize(("record", "of"), [(RECORD, PARAMETERS), (TAGGED, WITHOUT_TAGS)], ids=["plain", "tagged"])
def test_a_masked_sum_becomes_the_output(draft: Draft, size: int, fetched: bool, record: Any, of: Any) -> None:
    """The head of a fetched one was checked as it came; with tags the output is digested while it is written."""
    intake, message = SealedMaskedSum(SERVER, record, of, draft), sealed(sent())
    feed(intake, message, size)
    intake.finish(None if fetched else caller(message))
    digest = VectorDigest()
    digest.update(to_bytes(expected()))
    assert intake.half_digest() == (digest.hexdigest() if record is TAGGED else None)
    assert np.array_equal(output(draft), expected())


@pytest.mark.parametrize(
    "header", [MaskedSumHeader(release_digest="cd" * 32, length=D), MaskedSumHeader(release_digest=RELEASE, length=8)]
)
def test_the_sum_of_something_else_is_refused(draft: Draft, header: MaskedSumHeader) -> None:
    with pytest.raises(AnnouncementMismatch, match="another release"):
        SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft).feed(sealed(b"", header))


def test_a_sum_of_another_length_is_refused(draft: Draft) -> None:
    message, long = sealed(sent()[:-1]), sealed(sent() + bytes(8))
    with pytest.raises(MalformedMessage, match="more came"):
        take(SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft), long, caller(long))
    cut = SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft)
    cut.feed(message)
    with pytest.raises(MalformedMessage, match=f"{D - 1} came"):
        cut.finish(caller(message))
    without = SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft)
    without.feed(sealed(b""))
    with pytest.raises(MalformedMessage, match="0 came"):
        without.finish()


def test_a_sealed_sum_that_its_sender_did_not_sign_is_refused(draft: Draft) -> None:
    message, other = sealed(sent()), sealed(sent())
    for stranger in (caller(other), caller(message, DigestField.CONTENT)):
        intake = SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft)
        intake.feed(message)
        with pytest.raises(BadSignature):
            intake.finish(stranger)


@pytest.mark.parametrize("place", [-1, -D, 2000])
def test_an_altered_or_cut_sum_does_not_open(draft: Draft, place: int) -> None:
    """The signature does not cover the body: the seal does."""
    message = sealed(sent())
    altered = bytearray(message)
    altered[place] ^= 1
    for wrong in (bytes(altered), message[:place]):
        intake = SealedMaskedSum(SERVER, RECORD, PARAMETERS, draft)
        with pytest.raises(BrokenSeal):
            take(intake, wrong, caller(message))


def take(intake: SealedMaskedSum, data: bytes, sender: Caller) -> None:
    intake.feed(data)
    intake.finish(sender)
