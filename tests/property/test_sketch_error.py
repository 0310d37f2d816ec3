"""The errors of what is opened, over many challenges, are what the sketch's theory says (docs/protocol.md 5, 8).

Theory. In a block of m = k/4 buckets let Q = ||S_b d||^2. With random signs and buckets,
Q - ||d||^2 = sum over i != j of s_i s_j [i and j share a bucket] d_i d_j. Its mean is 0; pairs are uncorrelated, each
unordered one contributes (2 d_i d_j)^2 / m, so Var Q = 4/m sum_{i<j} d_i^2 d_j^2 = 2/m (||d||^4 - sum d_i^4).
The estimate is the mean of 4 independent blocks: its relative variance is

    v = (2/k) (1 - sum d_i^4 / ||d||^4),        about 2/k for a spread-out d, 0 for a single coordinate.

So the squared distance is unbiased with relative standard deviation sqrt(v). The distance is the root:
sqrt(1 + e) = 1 + e/2 - e^2/8 + ..., relative standard deviation sqrt(v)/2 and bias -v/8, which is -v/8 /
(sqrt(v)/2 / sqrt(n)) = sqrt(v n)/4 standard errors: 0.25 of one here, so both means can be held to three.

The rounding of the query moves ||d|| by at most sqrt(k)/2 = 23 units of about 2^21, relatively 1e-5: 2 % of a
standard error. The sample standard deviation of n = 1000 has itself a relative one of about 1/sqrt(2n) = 2.2 %
(somewhat more for a kurtosis above 3), so 10 % are four of those. Challenges are fixed: the outcome never changes.

A pair is a distance. For an inner product, Q = <S_b x, S_b y> and Q - <x, y> is the same sum over x_i y_j; an
unordered pair contributes (x_i y_j + x_j y_i)^2 / m, so, over four blocks,

    Var = (1/k) (||x||^2 ||y||^2 + <x, y>^2 - 2 sum x_i^2 y_i^2),

for x = y the v above. No root is taken: the inner product itself is unbiased.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import encode
from protocol.arithmetic.ring import Usage, derive, expand, to_signed
from protocol.mpc import measurement
from protocol.mpc.measurement import Factor, distance_factor, inner_product_factor, open_inner_product
from protocol.mpc.sketch import sketch_shares
from protocol.sharing import Side, chunk_source, split

from .drawn import study

CHALLENGES = 1000
DIMENSION = 4097
SEED = bytes(range(32))
NUMERATOR, GRID = 17, 32


def _dense(draw: np.random.Generator) -> np.ndarray:
    return draw.normal(size=DIMENSION)


def _two_heavy_coordinates(draw: np.random.Generator) -> np.ndarray:
    """Half of the squared norm in two coordinates: sum d_i^4 / ||d||^4 is about 1/8."""
    x = draw.normal(size=DIMENSION)
    x[:2] = np.linalg.norm(x[2:]) / math.sqrt(2)
    return x


def _constant(_draw: np.random.Generator) -> np.ndarray:
    return np.ones(DIMENSION)


@pytest.mark.parametrize("shape", [_dense, _two_heavy_coordinates, _constant])
def test_opened_distances_are_unbiased_and_spread_as_in_theory(shape):
    draw = np.random.default_rng(7)
    parameters = study(DIMENSION)
    own = draw.normal(size=DIMENSION)
    own *= 0.5 * parameters.clip_norm / np.linalg.norm(own)
    difference = shape(draw)
    weight = NUMERATOR / GRID
    site = weight * (own + difference * (0.5 * parameters.clip_norm / np.linalg.norm(difference)))
    x_0, x_i = encode(own, parameters, derive(SEED, "own")), encode(site, parameters, derive(SEED, "site"))
    sources = [chunk_source(share) for share in split(x_i, derive(SEED, "share"))]
    # what is estimated, from the encoded integers: d = x_i - w x_0
    d = to_signed(x_i).astype(np.float64) - weight * to_signed(x_0)
    truth = float(np.linalg.norm(d)) / parameters.scale / weight
    heaviness = float(np.sum(d**4) / np.sum(d**2) ** 2)

    opened = []
    for n in range(CHALLENGES):
        challenge = derive(SEED, f"challenge {n}")
        s_0, s_a, s_b = sketch_shares(challenge, [lambda i, j: x_0[i:j], *sources], parameters)
        query = measurement.distance_query(s_0, NUMERATOR, GRID)
        query_a = expand(challenge, Usage.QUERY, query.size)
        d_a, d_b = distance_factor(s_a, query_a), distance_factor(s_b, query - query_a)
        opened.append(measurement.open_distance(*_shares(d_a, d_b), NUMERATOR, parameters))

    sigma = math.sqrt(2 / parameters.sketch_length * (1 - heaviness))
    of_squares = (np.array(opened) / truth) ** 2 - 1
    of_distances = np.array(opened) / truth - 1
    for errors, spread in ((of_squares, sigma), (of_distances, sigma / 2)):
        assert abs(errors.mean()) < 3 * spread / math.sqrt(CHALLENGES)
        assert abs(errors.std(ddof=1) / spread - 1) < 0.1


@pytest.mark.parametrize("cosine", [1.0, 0.5, 0.0, -1.0])
def test_pairs_and_inner_products_are_unbiased_and_spread_as_in_theory(cosine):
    """Two sites, opened through the servers' steps: their distance, and the second one's inner product."""
    draw = np.random.default_rng(11)
    parameters = study(DIMENSION)
    first, across = draw.normal(size=(2, DIMENSION))
    across -= first * (across @ first) / (first @ first)
    half = 0.5 * parameters.clip_norm
    first *= half / np.linalg.norm(first)
    # never the same vector twice: a pair of equal sites has no error to look at
    second = 0.9 * (cosine * first + math.sqrt(1 - cosine**2) * across * (half / np.linalg.norm(across)))
    x, y = encode(first, parameters, derive(SEED, "first")), encode(second, parameters, derive(SEED, "second"))
    sources = [chunk_source(share) for name, z in (("x", x), ("y", y)) for share in split(z, derive(SEED, name))]
    exact_x, exact_y = (to_signed(z).astype(np.float64) / parameters.scale for z in (x, y))

    pairs, products = [], []
    for n in range(CHALLENGES):
        x_a, x_b, y_a, y_b = sketch_shares(derive(SEED, f"challenge {n}"), sources, parameters)
        pair = distance_factor(x_a, y_a), distance_factor(x_b, y_b)
        pairs.append(measurement.open_distance(*_shares(*pair), GRID, parameters))
        asked = inner_product_factor(Side.A, y_a, x_a), inner_product_factor(Side.B, y_b, x_b)
        products.append(open_inner_product(*_shares(*asked), GRID, parameters))

    k, d, inner = parameters.sketch_length, exact_x - exact_y, float(exact_x @ exact_y)
    norms = float(exact_x @ exact_x) * float(exact_y @ exact_y)
    of_pairs = math.sqrt(2 / k * (1 - float(np.sum(d**4)) / float(d @ d) ** 2))
    of_products = math.sqrt((norms + inner**2 - 2 * float(np.sum(exact_x**2 * exact_y**2))) / k)
    for errors, spread in (
        ((np.array(pairs) / np.linalg.norm(d)) ** 2 - 1, of_pairs),
        (np.array(products) - inner, of_products),
    ):
        assert abs(errors.mean()) < 3 * spread / math.sqrt(CHALLENGES)
        assert abs(errors.std(ddof=1) / spread - 1) < 0.1


def _shares(at_a: Factor, at_b: Factor) -> tuple[int, int]:
    """Both sides' shares of a quantity; the product's is split at a random element."""
    random_share = int(at_a.own[0])
    return at_a.share(random_share), at_b.share(int(np.dot(at_a.own, at_b.own)) - random_share)


def test_a_single_coordinate_is_measured_exactly():
    """heaviness = 1, so v = 0: each block holds the one entry in one bucket."""
    parameters = study(DIMENSION)
    x = np.zeros(DIMENSION, dtype=np.uint64)
    x[4000] = 2**21
    for n in range(20):
        (sketch,) = sketch_shares(derive(SEED, f"challenge {n}"), [lambda i, j: x[i:j]], parameters)
        opened = measurement.open_distance(measurement.square_share(sketch), 0, GRID, parameters)
        assert opened == 2**21 / parameters.scale
