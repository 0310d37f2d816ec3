"""protocol/ and the slow reference compute the same on random input, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol import release
from protocol.arithmetic import fixed_point
from protocol.arithmetic.kernels import transpose_bits
from protocol.mpc import measurement
from protocol.mpc.sketch import projections, sketch_vector
from protocol.ot import extension
from protocol.ot import kernels as ot_kernels
from protocol.ot.gilboa import RowHash
from protocol.rules.interface import Measured, SiteFacts
from protocol.rules.weight_erosion import WeightErosion
from tests.reference import field, numbers, product, rules
from tests.reference import range_check as slow_range
from tests.reference import release as slow_release
from tests.reference import ring as slow
from tests.reference import sketch as slow_sketch

from .drawn import EXACTLY_AGAIN, ring, ring_vectors, seeds, study

K = 2048


def words(number: int, length: int) -> list[int]:
    return slow.expand(number.to_bytes(32, "big"), "SEEDED", length)


@given(
    values=st.lists(st.floats(-1, 1), min_size=1, max_size=20),
    exponent=st.integers(-5, 30),
    seed=seeds,
    start=st.integers(0, 2**20),
)
@EXACTLY_AGAIN
def test_encoding(values, exponent, seed, start):
    parameters = study(len(values), fraction_bits=exponent)
    x = [v * parameters.clip_norm for v in values]
    expected = numbers.encode(x, exponent, numbers.uniform_draws(seed, len(x), start))
    found = fixed_point.encode(np.array(x), parameters, seed, start=start)
    assert found.tolist() == expected
    assert fixed_point.decode(found, parameters).tolist() == numbers.decode(expected, exponent)


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20),
    log2_size=st.integers(-120, 20),
    numerator=st.integers(0, 32),
    exponent=st.integers(-5, 30),
    seed=seeds,
)
@EXACTLY_AGAIN
def test_clipping_weighting_and_encoding_in_one_pass(values, log2_size, numerator, exponent, seed):
    """Within one unit of the exact real, but for the floating-point steps before the rounding.

    Those have a relative error of at most (n/2 + 8) 2^-53 (sum of n squares, root, factor, four products) on at most
    2^21 units: below 2^-26 for n <= 20; a value of subnormal size loses less than that in absolute terms.
    """
    parameters, n = study(len(values), fraction_bits=exponent), len(values)
    x = np.ldexp(np.array(values), log2_size)
    scaling = fixed_point.scaling_of(x, [("all", n)], parameters, numerator / 32)
    found = np.empty(n, dtype=np.uint64)
    fixed_point.encode_into(found, x, scaling, seed, 0)
    exact = numbers.clipped_and_weighted(x.tolist(), parameters.clip_norm, Fraction(numerator, 32))
    for word, real in zip(found.tolist(), exact, strict=True):
        assert abs(slow.signed(word) - real * Fraction(2) ** exponent) < 1 + Fraction(1, 2**26)


@given(alpha=st.floats(0, 1), grid=st.integers(1, 2**16))
@EXACTLY_AGAIN
def test_grid_points(alpha, grid):
    assert fixed_point.quantise_weight(alpha, grid) == numbers.nearest_grid_point(alpha, grid)


@given(challenge=seeds, number=st.integers(0, 2**60), dimension=st.sampled_from([1, 5, K, K + 1, 2300]))
@EXACTLY_AGAIN
def test_sketch(challenge, number, dimension):
    x = words(number, dimension)
    found = sketch_vector(challenge, ring(x), study(dimension))
    assert found.tolist() == slow_sketch.sketch(challenge, x, K)


@given(sketch=ring_vectors(), grid=st.integers(1, 2**16), data=st.data())
@EXACTLY_AGAIN
def test_query(sketch, grid, data):
    numerator = data.draw(st.integers(1, grid))
    assert measurement.distance_query(ring(sketch), numerator, grid).tolist() == product.query(sketch, numerator, grid)


@given(challenge=seeds, length=st.integers(1, 60))
@EXACTLY_AGAIN
def test_projections(challenge, length):
    assert projections(challenge, study(length)).tolist() == slow_range.projections(challenge, length)


@given(
    opened=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    numerators=st.lists(st.integers(1, 32), min_size=1, max_size=10),
    exponent=st.integers(-5, 30),
)
@EXACTLY_AGAIN
def test_average(opened, numerators, exponent):
    parameters, weight_sum = study(1, fraction_bits=exponent), Fraction(sum(numerators), 32)
    average = release.average_chunk(np.array(opened, dtype=np.int64), float(weight_sum), parameters)
    assert average.tolist() == slow_release.average(opened, weight_sum, exponent)


@given(chi=st.binary(min_size=16, max_size=16), data=st.data(), eighths=st.integers(1, 9))
@EXACTLY_AGAIN
def test_column_hash(chi, data, eighths):
    columns = data.draw(st.lists(st.binary(min_size=8 * eighths, max_size=8 * eighths), min_size=1, max_size=4))
    array = np.frombuffer(b"".join(columns), dtype=np.uint8).reshape(len(columns), -1)
    found = extension.column_hashes(chi, array)
    assert [row.tobytes() for row in found] == [field.polynomial_hash(chi, column) for column in columns]


@given(number=st.integers(0, 2**60), words_per_column=st.integers(1, 3))
@EXACTLY_AGAIN
def test_transposed_rows(number, words_per_column):
    length = 8 * words_per_column
    data = slow.stream(number.to_bytes(32, "big"), "SEEDED", 0, 128 * length)
    columns = [data[length * j : length * (j + 1)] for j in range(128)]
    rows = transpose_bits(np.frombuffer(data, dtype=np.uint8).reshape(128, -1))
    assert [row.tobytes() for row in rows] == field.rows_of(columns)


@given(key=seeds, number=st.integers(0, 2**60), count=st.integers(1, 5), index=st.integers(0, 2**50))
@EXACTLY_AGAIN
def test_row_hash(key, number, count, index):
    data = slow.stream(number.to_bytes(32, "big"), "SEEDED", 0, 16 * count)
    rows = [data[16 * i : 16 * (i + 1)] for i in range(count)]
    found = RowHash(key)(np.frombuffer(data, dtype=np.uint8).reshape(-1, 16), index)
    assert found.tolist() == [field.row_hash(key[:16], row, index + i) for i, row in enumerate(rows)]


def test_row_hash_of_more_rows_than_one_chunk():
    """Rows far into a long batch are hashed under their own index."""
    count, first = 40_000, 2**33 - 5
    data = slow.stream(bytes(32), "SEEDED", 0, 16 * count)
    found = RowHash(bytes(32))(np.frombuffer(data, dtype=np.uint8).reshape(-1, 16), first)
    for i in (0, 1, 2**12, 2**13, 2**14 - 1, 2**14, 2**14 + 1, 2**15, count - 1):
        assert int(found[i]) == field.row_hash(bytes(16), data[16 * i : 16 * (i + 1)], first + i)


@given(a=ring_vectors(1, 3), number=st.integers(0, 2**60), data=st.data())
@EXACTLY_AGAIN
def test_bit_by_bit_products(a, number, data):
    b = data.draw(ring_vectors(len(a), len(a)))
    zero, one = words(number, 64 * len(a)), words(number + 1, 64 * len(a))
    chosen = [(one if (a[i // 64] >> (i % 64)) & 1 else zero)[i] for i in range(64 * len(a))]
    sent = [field.gilboa_send(zero[64 * i : 64 * i + 64], one[64 * i : 64 * i + 64], v) for i, v in enumerate(b)]
    got = [field.gilboa_receive(chosen[64 * i : 64 * i + 64], sent[i][1], v) for i, v in enumerate(a)]
    assert [(x + s[0]) % 2**64 for x, s in zip(got, sent, strict=True)] == [
        x * y % 2**64 for x, y in zip(a, b, strict=True)
    ]
    packed, terms = ot_kernels.sender_products(ring(zero), ring(one), ring(b))
    assert packed.astype("<u4").tobytes() == b"".join(message for _, message in sent)
    assert terms.tolist() == [share for share, _ in sent]
    assert ot_kernels.receiver_products(ring(chosen), packed, ring(a)).tolist() == got


@given(
    d_rels=st.lists(st.floats(0, 20), min_size=1, max_size=8),
    batch=st.integers(1, 100),
    samples=st.integers(1, 300),
    penalty=st.floats(0, 1),
    size_penalty=st.floats(0, 2),
)
@EXACTLY_AGAIN
def test_weight_erosion(d_rels, batch, samples, penalty, size_penalty):
    rule, alpha = WeightErosion(penalty, size_penalty, batch, 32), 1.0
    state = rule.init((SiteFacts(name="b", samples=samples),))
    for r, d_rel in enumerate(d_rels, start=1):
        alpha = rules.settle(rules.erode(alpha, r, batch, samples, penalty, size_penalty, d_rel), 32)
        state = rule.apply(state, Measured(round=r, distances=(("b", d_rel),), requester_norm=1.0, took_part=("b",)))
        assert state.alpha_of("b") == alpha
