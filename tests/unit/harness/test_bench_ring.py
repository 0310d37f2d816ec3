"""The 48-bit prototype: packing is exact, shares open and sketch alike, lifting errs as often as derived."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from harness.bench.cli import app
from harness.bench.ring import lifting, packing
from harness.bench.ring.run import RingBenchmark, benchmark_ring, ring_text
from harness.bench.vectors import parameters_for, update_of
from protocol.arithmetic.ring import Ring, to_signed
from protocol.mpc.sketch import sketch_vector

SIZE = 4096


def random_ring(seed: int, size: int = SIZE) -> Ring:
    return np.random.default_rng(seed).integers(0, 2**64, size=size, dtype=np.uint64)


def test_packed_elements_are_six_little_endian_bytes_each() -> None:
    x = random_ring(1)
    words = np.empty(SIZE // 4 * 3, dtype=np.uint64)
    packing.pack(x, words)
    assert words.tobytes() == b"".join(int(one).to_bytes(8, "little")[:6] for one in x)
    back = np.empty_like(x)
    packing.unpack(words, back)
    assert np.array_equal(back, x & packing.MASK)


def test_split_summed_and_opened_the_sum_is_exact() -> None:
    values = np.random.default_rng(2).integers(-(2**30), 2**30, size=(3, SIZE)).astype(np.int64)
    total = [np.zeros(SIZE, dtype=np.uint64) for _ in range(2)]
    for place, one in enumerate(values):
        pad = np.empty(SIZE // 4 * 3, dtype=np.uint64)
        packing.pack(random_ring(10 + place), pad)
        share = np.empty_like(pad)
        packing.mask(one.view(np.uint64), pad, share)
        packing.add_into(total[0], share)
        packing.add_into(total[1], pad)
    halves = [np.empty(SIZE // 4 * 3, dtype=np.uint64) for _ in range(2)]
    for half, one in zip(halves, total, strict=True):
        packing.pack(one, half)
    opened = np.empty(SIZE, dtype=np.uint64)
    packing.open_into(halves[0], halves[1], opened)
    assert np.array_equal(to_signed(opened), values.sum(axis=0))


def test_sketches_of_packed_shares_add_up_modulo_2_to_the_48() -> None:
    parameters = parameters_for(SIZE, 11)
    challenge = hashlib.sha256(b"x").digest()
    x = lifting.encoded(update_of(1, SIZE), parameters, bytes(32))
    a = random_ring(5) & packing.MASK
    b = (x - a) & packing.MASK
    whole = sketch_vector(challenge, a, parameters) + sketch_vector(challenge, b, parameters)
    assert np.array_equal((whole - sketch_vector(challenge, x, parameters)) & packing.MASK, np.zeros(2048, np.uint64))


def test_lifting_errs_as_often_as_the_entries_sizes_say_and_never_more_than_the_bound() -> None:
    parameters, rng = parameters_for(SIZE, 11), np.random.default_rng(7)
    entries = lifting.sketched(
        lifting.encoded(update_of(1, SIZE), parameters, bytes(32)), hashlib.sha256(b"y").digest(), parameters
    )
    found = lifting.lifted(entries, 30, 1500, rng)
    assert found.expected > 100
    assert abs(found.erred - found.expected) < 5 * np.sqrt(found.expected)
    assert found.expected / 1500 <= 1.2 * lifting.most_often(30, parameters)
    assert 2**-21 < lifting.most_often(48, parameters) < 2**-20
    assert lifting.lifted(entries, 60, 20, rng).erred == 0


def test_a_vector_that_is_not_sketched_errs_less() -> None:
    assert lifting.most_often(48, parameters_for(1000, 11)) < lifting.most_often(48, parameters_for(SIZE, 11)) / 2


def test_every_stage_is_timed_in_both_rings() -> None:
    found = benchmark_ring(65_536, 1)
    assert isinstance(found, RingBenchmark)
    assert len(found.stages) == 8
    assert min(one.ring_48.median for one in found.stages) > 0
    assert "from 48 bits" in ring_text(found)
    assert "ring" in {command.name for command in app.registered_commands}


@pytest.mark.parametrize("odd", [65_537, 70_000])
def test_parameters_are_rounded_down_to_whole_pieces(odd: int) -> None:
    assert benchmark_ring(odd, 1).parameters == 65_536
