"""Ciphertexts as they travel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

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
from protocol.errors import MalformedMessage

PARAMETERS = CkksParameters()
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
