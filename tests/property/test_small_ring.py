"""Shares, sums and sketches modulo 2^48, against big integers (docs/protocol.md 24)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import release
from protocol.arithmetic.fixed_point import packed, unpacked
from protocol.arithmetic.ring import Ring, derive, lifted, to_signed
from protocol.errors import ProtocolViolation
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import StudyParameters
from protocol.sharing import VectorShare, chunk_source, expand_share, split

from .drawn import EXACTLY_AGAIN, seeds, study
from .test_range_check_soundness import attacks, opened, raw_update

HALF = 2**47
small = st.one_of(st.sampled_from([0, 1, -1, HALF - 1, -HALF]), st.integers(-HALF, HALF - 1))


def narrow(parameters: StudyParameters) -> StudyParameters:
    return parameters.model_copy(update={"ring_bits": 48})


def over_the_wire(share: VectorShare) -> VectorShare:
    """As the server has it that was sent six bytes an element."""
    return VectorShare(unpacked(packed(share.vector, 48), share.length, 48))


def vector(x: list[int]) -> Ring:
    return np.array(x, dtype=np.int64).view(np.uint64)


@given(x=st.lists(small, min_size=1, max_size=30), seed=seeds)
@EXACTLY_AGAIN
def test_both_shares_add_up_modulo_two_to_the_48(x, seed):
    seed_share, vector_share = split(vector(x), seed)
    both = expand_share(seed_share, 0, len(x)) + over_the_wire(vector_share).vector
    assert to_signed(lifted(both, 48)).tolist() == x


@given(data=st.data(), length=st.integers(1, 30), mask=seeds, number=st.integers(1, 6))
@EXACTLY_AGAIN
def test_a_masked_sum_of_packed_shares_opens_to_the_sum(data, length, mask, number):
    bound = 2**40
    updates = [data.draw(st.lists(st.integers(-bound, bound), min_size=length, max_size=length)) for _ in range(number)]
    held: tuple[list[Ring], list[Ring]] = ([], [])
    for i, x in enumerate(updates):
        seed_share, vector_share = split(vector(x), derive(mask, f"share {i}"))
        shares = [expand_share(seed_share, 0, length), over_the_wire(vector_share).vector]
        for side, share in zip(held, shares if i % 2 else shares[::-1], strict=True):
            side.append(share)
    sums: list[Ring] = [np.array(side).sum(axis=0, dtype=np.uint64) for side in held]
    sent = packed(release.masked_sum_chunk(sums[0], mask, 0), 48)
    served = packed(release.combine_chunk(unpacked(sent, length, 48), sums[1]), 48)
    opened_sum = release.open_aggregate_chunk(unpacked(served, length, 48), mask, 0, number * bound, 48)
    assert opened_sum.tolist() == [sum(column) for column in zip(*updates, strict=True)]


def test_a_bound_beyond_the_ring_is_refused():
    with pytest.raises(ProtocolViolation, match="48 bits"):
        release.open_aggregate_chunk(np.zeros(1, np.uint64), None, 0, HALF, bits=48)


@pytest.mark.parametrize("dimension", [7, 3000])
def test_sketches_of_both_servers_add_up_modulo_two_to_the_64(dimension):
    parameters, rng = narrow(study(dimension)), np.random.default_rng(20)
    x = rng.integers(-(2**21), 2**21, dimension)
    challenge = derive(bytes(32), "challenge")
    whole = sketch_vector(challenge, vector(x.tolist()), parameters)
    seed_share, vector_share = split(vector(x.tolist()), derive(bytes(32), "share"))
    sources = [chunk_source(seed_share), chunk_source(over_the_wire(vector_share))]
    a, b = sketch_shares(challenge, sources, parameters)
    assert np.array_equal(a + b, whole)
    assert all(np.all(np.abs(to_signed(one)) <= HALF) for one in (a, b))


@pytest.mark.parametrize("dimension", [100, 3000])
def test_honest_sites_pass_the_range_check(dimension):
    draw, parameters = np.random.default_rng(21), narrow(study(dimension))
    vectors = []
    for i in range(100):
        raw = raw_update(i % 5, draw, dimension)
        raw *= 2.0**21 / np.linalg.norm(raw)
        vectors.append(np.rint(raw).astype(np.int64).view(np.uint64))
    assert not opened(derive(bytes(32), "honest"), vectors, parameters, "honest").any()


@pytest.mark.parametrize("dimension", [100, 3000])
def test_what_wraps_in_the_small_ring_is_caught_by_every_challenge(dimension):
    """A miss has probability 2^-40 at most per attack and challenge; what is 0 modulo 2^48 is no attack."""
    parameters, draw = narrow(study(dimension)), np.random.default_rng(22)
    known = [(name, x) for name, x in attacks(dimension, draw) if np.any(np.abs(to_signed(lifted(x, 48))) > 3 * 2**26)]
    base = np.rint(draw.normal(size=dimension) * 2.0**15).astype(np.int64).view(np.uint64)
    for value in (HALF, HALF + 1, 2**46, 2**40, 2**24 * 5):
        for entries in (1, 2, None):
            x = base.copy()
            x[draw.permutation(dimension)[:entries]] += np.uint64(value)
            known.append((f"{entries} plus {value:#x}", x))
    assert len(known) > 20
    names, vectors = zip(*known, strict=True)
    for n in range(10):
        found = opened(derive(bytes(32), f"challenge {n}"), list(vectors), parameters, f"attacked {n}")
        assert [name for name, row in zip(names, found, strict=True) if not row.any()] == []


def test_a_share_that_a_server_reads_wrong_fails_the_range_check():
    """Shares of an entry at one end of the ring are read wrongly, by 2^48: the site is left out."""
    parameters, challenge = narrow(study(4)), derive(bytes(32), "challenge")
    a, b = vector([HALF - 1, 0, 0, 0]), vector([HALF - 3, 0, 0, 0])
    parts = sketch_shares(challenge, [chunk_source(VectorShare(a)), chunk_source(VectorShare(b))], parameters)
    true = to_signed(lifted(a + b, 48)).tolist()
    assert true == [-4, 0, 0, 0]
    assert to_signed(parts[0] + parts[1]).tolist() == [2**48 - 4, 0, 0, 0]
