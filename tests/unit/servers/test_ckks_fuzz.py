"""Whatever a contribution's bytes are, the parser refuses or takes them by their form, says why, and lives.

What a site could reach by such bytes is tried by ``ciphertexts-of-something-else``; here are parser and words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import HEADER_BYTES, SEED_BYTES, CkksParameters, Kind, SeededChunk, chunk_bytes
from protocol.ckks.scheme import Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, body_header, contribution
from protocol.errors import MalformedMessage
from servers.ckks.process import CkksProcess
from servers.rounds.ciphertexts import ContributionCheck

PARAMETERS = CkksParameters()
DIMENSION = 2000
STUDY = "5d" * 32
ROUND = "a0" * 32
ROUNDS = 150
SIZE = chunk_bytes(PARAMETERS, Kind.CONTRIBUTION)


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return Scheme(PARAMETERS).secret_key(bytes(range(32)), STUDY)


@pytest.fixture(scope="module")
def process() -> Iterator[CkksProcess]:
    with CkksProcess(PARAMETERS) as process:
        yield process


@pytest.fixture(scope="module")
def honest(key: SecretKey) -> bytes:
    return body_under(key)


def body_under(key: SecretKey, dimension: int = DIMENSION, site: str = "hospital-1") -> bytes:
    header = body_header(Kind.CONTRIBUTION, key, dimension)
    update = np.full(dimension, 0.01, dtype=np.float32)
    checks = SiteChecks(key, ROUND, site)
    return b"".join(contribution(Encryptor(key, MemoryFile()), header, update, Scaling(), 1.0, checks))


def offer(process: CkksProcess, key: SecretKey, body: bytes, piece: int = 5000) -> None:
    """As it would arrive. Raises: MalformedMessage, when it is refused"""
    check = ContributionCheck(process, key.id, DIMENSION + 1)
    for at in range(0, len(body), piece):
        check.write(body[at : at + piece])
    check.finish()


def accepted(process: CkksProcess, key: SecretKey, body: bytes) -> bool:
    """Refused is a MalformedMessage; any other error fails the test."""
    try:
        offer(process, key, body)
    except MalformedMessage:
        return False
    return True


def flip(rng: np.random.Generator, body: bytearray) -> None:
    body[rng.integers(len(body))] ^= 1 << rng.integers(8)


def overwrite(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.integers(len(body)))
    noise = rng.choice([bytes(64), b"\xff" * 64, rng.bytes(64)])
    body[at : at + 64] = bytes(noise)[: len(body) - at]


def cut(rng: np.random.Generator, body: bytearray) -> None:
    del body[rng.integers(len(body)) :]


def repeat(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.integers(len(body)))
    body += body[at:]


def swap_header_field(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.choice([0, 8, 24, 40]))
    body[at : at + 8] = rng.bytes(8)


def garbage(rng: np.random.Generator, body: bytearray) -> None:
    body[HEADER_BYTES:] = rng.bytes(len(body) - HEADER_BYTES)


@pytest.mark.parametrize("mutate", [flip, overwrite, cut, repeat, swap_header_field, garbage])
def test_mutated_bodies_are_refused_or_taken_and_the_worker_lives(
    process: CkksProcess, key: SecretKey, honest: bytes, mutate: Callable[[np.random.Generator, bytearray], None]
) -> None:
    offer(process, key, honest)
    pid, rng, refused = process.pid, np.random.default_rng(11), 0
    for _ in range(ROUNDS):
        body = bytearray(honest)
        mutate(rng, body)
        refused += not accepted(process, key, bytes(body))
    offer(process, key, honest)
    assert process.pid == pid
    if mutate in (cut, repeat, swap_header_field):
        assert refused == ROUNDS
    assert refused > 0 or mutate in (flip, garbage)  # garbage coefficients are below the modulus but for 2^-15


@pytest.mark.parametrize("seed", [bytes(SEED_BYTES), b"\xff" * SEED_BYTES])
@pytest.mark.parametrize("coefficient", [0, 1, PARAMETERS.modulus - 1])
def test_extreme_but_valid_chunks_are_added(process: CkksProcess, seed: bytes, coefficient: int) -> None:
    chunk = SeededChunk(np.full(2048, coefficient, dtype=np.uint64), seed).to_bytes(PARAMETERS)
    process.check([chunk])
    assert len(process.add([chunk, chunk])) == chunk_bytes(PARAMETERS, Kind.SUM)


# --- SEAL's own streams, which nobody here accepts --------------------------------------------------------------------


def seal_stream(key: SecretKey, tmp_path: Path) -> bytes:
    """What SEAL itself would write."""
    seal, plain = key.scheme.seal, key.scheme.seal.Plaintext()
    seal.CKKSEncoder(key.scheme.context).encode([0.5] * 1024, PARAMETERS.scale, plain)
    seal.Encryptor(key.scheme.context, key.key).encrypt_symmetric(plain).save(str(tmp_path / "ct"))
    return (tmp_path / "ct").read_bytes()


def hostile_streams(honest: bytes) -> Iterator[bytes]:
    """Headers that lie about sizes and versions, and compressed bytes that would fill the memory."""
    header = struct.Struct("<HBBBBHQ")
    magic, length, major, minor, _, _, _ = header.unpack(honest[:16])
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(2**28))
    yield honest
    yield honest[: len(honest) // 2]
    yield header.pack(magic, length, major, minor, 2, 0, 2**63) + honest[16:]
    yield header.pack(magic, length, major, minor, 0, 0, len(honest)) + honest[16:]
    yield header.pack(magic, length, 3, 1, 2, 0, len(honest)) + honest[16:]
    yield header.pack(magic, length, major, minor, 2, 0, 16 + len(bomb)) + bomb


def test_seals_own_streams_never_reach_its_parser(
    process: CkksProcess, key: SecretKey, honest: bytes, tmp_path: Path
) -> None:
    offer(process, key, honest)
    pid = process.pid
    for stream in hostile_streams(seal_stream(key, tmp_path)):
        with pytest.raises(MalformedMessage, match="not a CKKS contribution"):
            offer(process, key, stream)
        # Inside a chunk they are coefficients like any others, or refused for their length.
        inside = honest[:HEADER_BYTES] + (stream + bytes(len(honest)))[: len(honest) - HEADER_BYTES]
        accepted(process, key, inside)
    offer(process, key, honest)
    assert process.pid == pid


# --- a site of another study, key or length ---------------------------------------------------------------------------


def test_bodies_of_another_context_key_or_length_are_refused_and_the_others_go_on(
    process: CkksProcess, key: SecretKey, honest: bytes
) -> None:
    other_scheme = Scheme(CkksParameters(scale_bits=35)).secret_key(bytes(range(32)), STUDY)
    other_key = key.scheme.secret_key(bytes(32), STUDY)
    for body, complaint in (
        (body_under(other_scheme), "another context"),
        (body_under(other_key), "another key"),
        (body_under(key, DIMENSION - 1), "2000 values, the study's updates have 2001"),
        (honest[:-1], "ends 1 chunks before"),
        (honest + b"\x00", "goes on"),
        (b"", "before it should"),
        (b"\x00" * 100, "not a CKKS contribution"),
        (b'{"weights": [0.1, 0.2]}' * 10, "not a CKKS contribution"),
    ):
        with pytest.raises(MalformedMessage, match=complaint):
            offer(process, key, body)
    offer(process, key, honest)


def test_even_a_worker_that_dies_of_each_attempt_costs_only_that_contribution(
    process: CkksProcess, key: SecretKey, honest: bytes
) -> None:
    """Killed from outside between requests, again and again: every honest body is still taken."""
    for _ in range(3):
        assert process.pid is not None
        os.kill(process.pid, 11)
        offer(process, key, honest)
