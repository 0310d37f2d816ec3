"""Encryption, addition and decryption by SEAL, and ciphertexts as they travel."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from host.files import MemoryFile
from protocol.ckks.ciphertext import (
    HEADER_BYTES,
    BodyHeader,
    ChunkReader,
    CkksParameters,
    Kind,
    SeededChunk,
    SumChunk,
    body_bytes,
    chunk_bytes,
    chunk_count,
    chunk_offset,
    chunks_of,
)
from protocol.ckks.scheme import MISSING, Adder, Decryptor, Encryptor, Scheme, SecretKey
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, UnusableUpdate
from tests.unit.ckks.conftest import SEED, STUDY

# --- cipher -----------------------------------------------------------------------------------------------------------

PARAMETERS = CkksParameters()


def clipped(number: int) -> np.ndarray:
    """1,024 values of norm 1."""
    values = np.random.default_rng(number).normal(size=1024)
    return values / np.linalg.norm(values)


@pytest.mark.parametrize("sites", [1, 10, 100])
def test_the_decrypted_sum_is_the_sum_within_the_noise(key: SecretKey, scratch: MemoryFile, sites: int) -> None:
    encryptor, adder, decryptor = Encryptor(key, scratch), Adder(key.scheme, scratch), Decryptor(key, scratch)
    expected = np.zeros(1024)
    for number in range(sites):
        adder.add(encryptor.encrypt(clipped(number)))
        expected += clipped(number)
    error = decryptor.decrypt(adder.finish()) - expected
    deviation = PARAMETERS.value_deviation * math.sqrt(sites)
    # 1,024 nearly normal values: 8 deviations are passed with probability below 1e-12, and the root mean square is
    # within 8 / sqrt(2 * 1024) = 0.18 of the deviation as surely.
    assert np.max(np.abs(error)) < 8 * deviation
    assert np.sqrt(np.mean(error**2)) == pytest.approx(deviation, rel=0.18)


def test_fewer_values_are_filled_up_with_zeros(key: SecretKey, scratch: MemoryFile) -> None:
    adder = Adder(key.scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(np.array([0.5, -0.25])))
    found = Decryptor(key, scratch).decrypt(adder.finish())
    assert found[:2] == pytest.approx([0.5, -0.25], abs=8 * PARAMETERS.value_deviation)
    assert np.max(np.abs(found[2:])) < 8 * PARAMETERS.value_deviation


def test_a_hundred_updates_at_the_very_limit_do_not_wrap(key: SecretKey, scratch: MemoryFile) -> None:
    """All magnitudes in the first coefficient: equal values make one coefficient of the largest size."""
    encryptor, adder, decryptor = Encryptor(key, scratch), Adder(key.scheme, scratch), Decryptor(key, scratch)
    most = np.full(1024, 0.999 * PARAMETERS.largest_magnitudes / 1024)
    for _ in range(PARAMETERS.most_sites):
        adder.add(encryptor.encrypt(most))
    assert decryptor.decrypt(adder.finish()) == pytest.approx(100 * most, abs=80 * PARAMETERS.value_deviation)


def test_the_same_values_never_make_the_same_ciphertext(key: SecretKey, scratch: MemoryFile) -> None:
    encryptor = Encryptor(key, scratch)
    one, other = (SeededChunk.parse(encryptor.encrypt(clipped(1)), PARAMETERS) for _ in range(2))
    assert one.seed != other.seed
    # two independent uniform polynomials modulo 2^40 agree in one of 2,048 places with probability 2^-29
    assert np.count_nonzero(one.c0 == other.c0) < 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(key: SecretKey, scratch: MemoryFile, bad: float) -> None:
    values = clipped(1)
    values[7] = bad
    with pytest.raises(UnusableUpdate, match="NaN or infinite"):
        Encryptor(key, scratch).encrypt(values)


def test_what_leaves_the_plaintext_range_is_refused(key: SecretKey, scratch: MemoryFile) -> None:
    values = np.full(1024, 1.001 * PARAMETERS.largest_magnitudes / 1024)
    with pytest.raises(UnusableUpdate, match="add up to 82"):
        Encryptor(key, scratch).encrypt(values)


@pytest.mark.parametrize("shape", [(0,), (1025,), (2, 2)])
def test_other_shapes_are_refused(key: SecretKey, scratch: MemoryFile, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnusableUpdate, match="1 to 1024 values"):
        Encryptor(key, scratch).encrypt(np.zeros(shape))


def test_an_adder_keeps_to_the_most_sites(scheme: Scheme, key: SecretKey, scratch: MemoryFile) -> None:
    chunk, adder = Encryptor(key, scratch).encrypt(clipped(1)), Adder(scheme, scratch)
    for _ in range(PARAMETERS.most_sites):
        adder.add(chunk)
    with pytest.raises(ProtocolViolation, match="at most 100"):
        adder.add(chunk)
    adder.reset()
    adder.add(chunk)


def test_a_sum_of_nothing_is_refused(scheme: Scheme, scratch: MemoryFile) -> None:
    with pytest.raises(ProtocolViolation, match="no ciphertexts"):
        Adder(scheme, scratch).finish()


def test_a_sum_that_is_not_encrypted_is_refused(key: SecretKey, scratch: MemoryFile) -> None:
    zeros = np.zeros(2048, dtype=np.uint64)
    with pytest.raises(MalformedMessage, match="not encrypted"):
        Decryptor(key, scratch).decrypt(SumChunk(zeros, zeros).to_bytes(PARAMETERS))


def test_checking_takes_what_adding_takes_and_leaves_the_sum_alone(
    key: SecretKey, scheme: Scheme, scratch: MemoryFile
) -> None:
    adder = Adder(scheme, scratch)
    adder.check(Encryptor(key, scratch).encrypt(clipped(1)))
    with pytest.raises(MalformedMessage):
        adder.check(b"not a ciphertext")
    with pytest.raises(ProtocolViolation):
        adder.finish()


def test_the_key_follows_from_its_seed_and_study(scheme: Scheme, key: SecretKey, scratch: MemoryFile) -> None:
    again = Scheme(PARAMETERS).secret_key(SEED, STUDY)
    adder = Adder(scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(clipped(1)))
    found = Decryptor(again, scratch).decrypt(adder.finish())
    assert again.id == key.id
    assert found == pytest.approx(clipped(1), abs=8 * PARAMETERS.value_deviation)


def test_another_seed_or_study_gives_another_key_that_decrypts_nothing(
    scheme: Scheme, key: SecretKey, scratch: MemoryFile
) -> None:
    others = [scheme.secret_key(SEED, "00" * 32), scheme.secret_key(bytes(32), STUDY)]
    assert len({key.id, *(other.id for other in others)}) == 3
    adder = Adder(scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(clipped(1)))
    total = adder.finish()
    for other in others:
        assert np.std(Decryptor(other, scratch).decrypt(total)) > 1  # uniform modulo q: far from values below 1


def test_a_key_seed_of_another_length_is_refused(scheme: Scheme) -> None:
    with pytest.raises(MalformedMessage, match="31 bytes"):
        scheme.secret_key(bytes(31), STUDY)


def test_a_key_shows_only_its_id(key: SecretKey) -> None:
    assert repr(key) == f"SecretKey(id={key.id!r})"


def test_a_modulus_that_is_no_prime_is_refused_by_seal() -> None:
    composite = CkksParameters(modulus=(1 << 40) - 4095 - 4096 * 16)
    assert composite.modulus % 4096 == 1
    with pytest.raises(ConfigurationError, match="SEAL refuses"):
        Scheme(composite)


def test_fingerprints_differ_when_the_parameters_do(scheme: Scheme) -> None:
    assert Scheme(CkksParameters(scale_bits=35)).fingerprint != scheme.fingerprint
    assert Scheme(PARAMETERS).fingerprint == scheme.fingerprint


def test_without_tenseal_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(ConfigurationError, match="pip install 'moiety") as caught:
        Scheme(PARAMETERS)
    assert caught.value.detail == MISSING


class Altered(MemoryFile):
    """A scratch file whose bytes change on the way."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def read(self) -> bytes:
        data = bytearray(super().read())
        data[self._at] ^= 1
        return bytes(data)

    def write(self, data: bytes) -> None:
        changed = bytearray(data)
        changed[self._at] ^= 1
        super().write(bytes(changed))


def test_a_seal_that_writes_another_form_is_not_used(key: SecretKey) -> None:
    with pytest.raises(ConfigurationError, match="another form"):
        Encryptor(key, Altered(at=2)).encrypt(clipped(1))


def test_what_seal_refuses_is_refused(key: SecretKey, scheme: Scheme, scratch: MemoryFile) -> None:
    chunk = Encryptor(key, scratch).encrypt(clipped(1))
    with pytest.raises(MalformedMessage, match="SEAL refuses it"):
        Adder(scheme, Altered(at=20)).add(chunk)


# --- ciphertext -------------------------------------------------------------------------------------------------------

HEADER = BodyHeader(Kind.CONTRIBUTION, b"f" * 16, b"k" * 16, values=2500)


def a_polynomial(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, PARAMETERS.modulus, PARAMETERS.ring_degree, dtype=np.uint64)


def a_body() -> bytes:
    chunks = [SeededChunk(a_polynomial(i), bytes([i]) * 64).to_bytes(PARAMETERS) for i in range(3)]
    return HEADER.to_bytes() + b"".join(chunks)


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def test_lengths_follow_from_the_parameters_alone() -> None:
    assert chunk_bytes(PARAMETERS, Kind.CONTRIBUTION) == 64 + 2048 * 5
    assert chunk_bytes(PARAMETERS, Kind.SUM) == 2 * 2048 * 5
    assert [chunk_count(PARAMETERS, values) for values in (1, 1020, 1021)] == [1, 1, 2]
    assert body_bytes(PARAMETERS, Kind.CONTRIBUTION, 2500) == len(a_body())
    assert chunk_offset(PARAMETERS, Kind.CONTRIBUTION, 2) == HEADER_BYTES + 2 * 10304


def test_a_million_parameters_take_ten_bytes_each_up_and_twenty_down() -> None:
    assert body_bytes(PARAMETERS, Kind.CONTRIBUTION, 10**6 + 1) / 10**6 < 10.11
    assert body_bytes(PARAMETERS, Kind.SUM, 10**6 + 1) / 10**6 < 20.10


def test_chunks_come_back_as_they_went() -> None:
    fresh = SeededChunk(a_polynomial(1), bytes(range(64)))
    again = SeededChunk.parse(fresh.to_bytes(PARAMETERS), PARAMETERS)
    assert again.seed == fresh.seed
    assert np.array_equal(again.c0, fresh.c0)
    total = SumChunk(a_polynomial(2), a_polynomial(3))
    summed = SumChunk.parse(total.to_bytes(PARAMETERS), PARAMETERS)
    assert np.array_equal(summed.c0, total.c0)
    assert np.array_equal(summed.c1, total.c1)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_chunk_of_another_length_is_refused(change: int) -> None:
    data = bytes(chunk_bytes(PARAMETERS, Kind.CONTRIBUTION) + change)
    with pytest.raises(MalformedMessage, match="must have 10304"):
        SeededChunk.parse(data, PARAMETERS)
    with pytest.raises(MalformedMessage, match="must have 20480"):
        SumChunk.parse(data, PARAMETERS)


@pytest.mark.parametrize("place", [0, 1024, 2047])
def test_a_coefficient_that_reaches_the_modulus_is_refused(place: int) -> None:
    polynomial = a_polynomial(1)
    polynomial[place] = PARAMETERS.modulus - 1
    SeededChunk.parse(SeededChunk(polynomial, bytes(64)).to_bytes(PARAMETERS), PARAMETERS)
    polynomial[place] = PARAMETERS.modulus
    with pytest.raises(MalformedMessage, match="not below the modulus"):
        SeededChunk.parse(SeededChunk(polynomial, bytes(64)).to_bytes(PARAMETERS), PARAMETERS)


@pytest.mark.parametrize("size", [1000, 10303, 10304, 50_000])
def test_a_body_in_pieces_of_any_size_gives_its_chunks(size: int) -> None:
    body = a_body()
    chunks = list(chunks_of(pieces(body, size), PARAMETERS, HEADER))
    assert b"".join(chunks) == body[HEADER_BYTES:]
    assert {len(chunk) for chunk in chunks} == {10304}


@pytest.mark.parametrize(
    ("different", "complaint"),
    [
        (replace(HEADER, kind=Kind.SUM), "not a CKKS contribution: it must begin with 'MOIETYCU'"),
        (replace(HEADER, fingerprint=b"g" * 16), "another context"),
        (replace(HEADER, key_id=b"l" * 16), "another key"),
        (replace(HEADER, values=2499), "2499 values, the study's updates have 2500"),
    ],
)
def test_another_header_is_refused_and_named(different: BodyHeader, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        ChunkReader(PARAMETERS, HEADER).feed(different.to_bytes())


@pytest.mark.parametrize("cut", [0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 10304, -1])
def test_a_body_that_is_cut_off_is_refused(cut: int) -> None:
    body = a_body()
    with pytest.raises(MalformedMessage, match="before it should"):
        list(chunks_of([body[:cut]], PARAMETERS, HEADER))


@pytest.mark.parametrize("size", [700, 10**6])
@pytest.mark.parametrize("more", [1, 10304])
def test_a_body_that_goes_on_is_refused(size: int, more: int) -> None:
    with pytest.raises(MalformedMessage, match="goes on after its last chunk"):
        list(chunks_of(pieces(a_body() + bytes(more), size), PARAMETERS, HEADER))
