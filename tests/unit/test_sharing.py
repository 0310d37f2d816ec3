from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.ring import Usage, expand
from protocol.errors import MalformedMessage
from protocol.sharing import (
    SeedShare,
    Side,
    VectorShare,
    chunk_source,
    expand_share,
    reconstruct,
    split,
    split_chunk,
    vector_side,
)

SEED = bytes(range(32))
EDGES = np.array([0, 1, 2**32, 2**63, 2**64 - 1], dtype=np.uint64)


def test_a_vector_is_reconstructed_from_both_shares_in_either_order(kernels, rng):
    for n in (0, 1, 1001):
        x = rng.integers(0, 2**64, n, dtype=np.uint64)
        x[: min(n, 5)] = EDGES[: min(n, 5)]
        seed_share, vector_share = split(x, SEED, kernels)
        assert np.array_equal(reconstruct(seed_share, vector_share, kernels), x)
        assert np.array_equal(reconstruct(vector_share, seed_share, kernels), x)


def test_the_vector_share_is_the_vector_minus_the_seeds_stream():
    _, vector_share = split(EDGES, SEED)
    stream = expand(SEED, Usage.SHARE, 5)
    assert vector_share.vector.tolist() == [(int(a) - int(b)) % 2**64 for a, b in zip(EDGES, stream, strict=True)]


def test_pieces_are_shared_and_read_as_the_whole(kernels, rng):
    x = rng.integers(0, 2**64, 1001, dtype=np.uint64)
    seed_share, vector_share = split(x, SEED, kernels)
    pieces = [split_chunk(x[a:b], SEED, a, kernels) for a, b in ((0, 334), (334, 999), (999, 1001))]
    assert np.array_equal(np.concatenate(pieces), vector_share.vector)
    for share in (seed_share, vector_share):
        whole = expand_share(share, 0, 1001)
        assert np.array_equal(chunk_source(share)(333, 777), whole[333:777])


def test_a_read_piece_is_a_copy():
    share = VectorShare(EDGES.copy())
    expand_share(share, 0, 5)[:] = 7
    assert np.array_equal(share.vector, EDGES)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 6), (6, 6)])
def test_pieces_outside_the_share_are_refused(start, stop):
    for share in split(EDGES, SEED):
        with pytest.raises(MalformedMessage, match="5 elements"):
            expand_share(share, start, stop)


def test_shares_of_different_lengths_do_not_belong_together():
    seed_share, _ = split(EDGES, SEED)
    with pytest.raises(MalformedMessage, match="5 and 4"):
        reconstruct(seed_share, VectorShare(EDGES[:4]))


@pytest.mark.parametrize(("seed", "length"), [(bytes(31), 5), (bytes(33), 5), (bytes(32), -1)])
def test_a_malformed_seed_share_is_refused(seed, length):
    with pytest.raises(MalformedMessage, match="32 bytes"):
        SeedShare(seed, length)


def test_secrets_stay_out_of_repr():
    seed_share, vector_share = split(EDGES, SEED)
    assert repr(seed_share) == "SeedShare(length=5)"
    assert repr(vector_share) == "VectorShare()"


def test_the_vector_alternates_between_the_servers():
    assert [vector_side(place) for place in range(4)] == [Side.A, Side.B, Side.A, Side.B]
    assert Side.A.other is Side.B
    assert Side.B.other is Side.A
    assert Side("a") is Side.A
