"""Every product of an OT correlation equals big-integer arithmetic modulo 2^64."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.mpc import product
from protocol.ot import gilboa
from protocol.ot.base import IKNP, SOFTSPOKEN, Extension
from protocol.ot.gilboa import RowHash
from protocol.ot.session import CorrelationHalf, OtReceiver, OtSender

EDGES = st.sampled_from([0, 1, 2, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1])
ELEMENT = EDGES | st.integers(0, 2**64 - 1)
SEED = st.binary(min_size=32, max_size=32)
LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4)


EXTENSION = st.sampled_from([IKNP, Extension(32), SOFTSPOKEN, Extension(16)])


@functools.cache
def session(extension: Extension) -> tuple[OtReceiver, OtSender]:
    """One for all examples: as between servers, it serves batch after batch."""
    return product.open_ot_sessions(bytes(32), bytes(32), bytes([1]) * 32, extension)


def assert_exact(halves_a: list[CorrelationHalf], halves_b: list[CorrelationHalf]) -> None:
    for a, b in zip(halves_a, halves_b, strict=True):
        terms = [x * y for x, y in zip(a.vector.tolist(), b.vector.tolist(), strict=True)]
        ends = np.cumsum(a.lengths).tolist()
        wanted = [sum(terms[end - length : end]) % 2**64 for end, length in zip(ends, a.lengths, strict=True)]
        assert [(x + y) % 2**64 for x, y in zip(a.products.tolist(), b.products.tolist(), strict=True)] == wanted


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, rand=SEED, extension=EXTENSION)
def test_ot_source(lengths: list[tuple[int, ...]], rand: bytes, extension: Extension):
    assert_exact(*product.ot_batch(*session(extension), lengths, rand))


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, rand=SEED)
def test_dealer_source(lengths: list[tuple[int, ...]], rand: bytes):
    assert_exact(*product.dealer_pair(lengths, rand))


@settings(max_examples=60, deadline=None)
@given(a=st.lists(ELEMENT, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_bit_by_bit_product_of_chosen_values(a: list[int], seed: int):
    rng = np.random.default_rng(seed)
    own = np.array(a, dtype=np.uint64)
    t = rng.integers(0, 256, (128, 8 * own.size), dtype=np.uint8)
    delta, key = rng.bytes(16), rng.bytes(32)
    chosen = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, np.newaxis]
    q = t ^ chosen * own.astype("<u8").view(np.uint8)
    b, message, terms_b = gilboa.sender_terms(RowHash(key), q, delta, own.size, first_row=seed)
    terms_a = gilboa.receiver_terms(RowHash(key), t, own, message, first_row=seed)
    assert (terms_a + terms_b).tolist() == [x * y % 2**64 for x, y in zip(a, b.tolist(), strict=True)]
