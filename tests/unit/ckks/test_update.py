"""An update as ciphertexts, and the average out of their sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from host.files import MemoryFile
from protocol.arithmetic.fixed_point import clip, scaling_of
from protocol.ckks.ciphertext import HEADER_BYTES, BodyHeader, CkksParameters, Kind, body_bytes, chunks_of
from protocol.ckks.scheme import Adder, Decryptor, Encryptor, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import AggregateOutOfBounds, MalformedMessage
from protocol.parameters import StudyParameters

PARAMETERS = CkksParameters()
CLIP_NORM = 4.0
WEIGHTS = (1.0, 0.25, 0.618)
ROUND = "a0" * 32


def study(dimension: int) -> StudyParameters:
    return StudyParameters(dimension=dimension, clip_norm=CLIP_NORM, least_contributors=2)


def an_update(number: int, dimension: int) -> np.ndarray:
    """Norm about 0.1 sqrt(D), in float32: clipped or not, by its length."""
    return (0.1 * np.random.default_rng(number).normal(size=dimension)).astype(np.float32)


def the_body(key: SecretKey, update: np.ndarray, weight: float, site: int) -> bytes:
    layers = (("all", update.size),)
    scaling = scaling_of(update, layers, study(update.size), weight)
    header = body_header(Kind.CONTRIBUTION, key, update.size)
    checks = SiteChecks(key, ROUND, str(site))
    return b"".join(contribution(Encryptor(key, MemoryFile()), header, update, scaling, CLIP_NORM, checks))


def the_sum(key: SecretKey, bodies: list[bytes], dimension: int) -> list[bytes]:
    header, adder = body_header(Kind.CONTRIBUTION, key, dimension), Adder(key.scheme, MemoryFile())
    pieces = [body_header(Kind.SUM, key, dimension).to_bytes()]
    for column in zip(*(chunks_of([body], PARAMETERS, header) for body in bodies), strict=True):
        for chunk in column:
            adder.add(chunk)
        pieces.append(adder.finish())
    return pieces


def opened(key: SecretKey, pieces: list[bytes], dimension: int, least: float = 0.25) -> np.ndarray:
    header = body_header(Kind.SUM, key, dimension)
    checks = SumChecks(key, ROUND, [str(site) for site in range(len(WEIGHTS))])
    return average(pieces, Decryptor(key, MemoryFile()), header, checks, least, CLIP_NORM)


@pytest.mark.parametrize("dimension", [1, 1018, 1019, 1020, 2039, 2500])
def test_the_average_is_the_plain_one_within_the_noise(key: SecretKey, dimension: int) -> None:
    updates = [an_update(number, dimension) for number in range(len(WEIGHTS))]
    bodies = [the_body(key, updates[site], weight, site) for site, weight in enumerate(WEIGHTS)]
    assert {len(body) for body in bodies} == {body_bytes(PARAMETERS, Kind.CONTRIBUTION, dimension + 1)}
    plain = sum(w * clip(u, CLIP_NORM)[0] for u, w in zip(updates, WEIGHTS, strict=True)) / sum(WEIGHTS)
    found = opened(key, the_sum(key, bodies, dimension), dimension)
    assert found.dtype == np.float32
    # Eight deviations of the sum, twice (the weights' sum is noisy too, and no value passes 1), then a float32 rounding
    noise = 2 * 8 * PARAMETERS.value_deviation * math.sqrt(len(WEIGHTS)) / sum(WEIGHTS)
    assert np.max(np.abs(found - plain)) < CLIP_NORM * (noise + 2.0**-24)


def test_weights_outside_the_agreed_range_discard_the_round(key: SecretKey) -> None:
    bodies = [the_body(key, an_update(number, 5), 0.25, number) for number in range(3)]
    pieces = the_sum(key, bodies, 5)
    assert opened(key, pieces, 5, least=0.25).shape == (5,)
    with pytest.raises(AggregateOutOfBounds, match=r"weights of 3 contributions add up to 0\.75"):
        opened(key, pieces, 5, least=0.3)


def test_a_sum_longer_than_clipped_updates_can_be_discards_the_round(key: SecretKey) -> None:
    header = body_header(Kind.CONTRIBUTION, key, 5)
    encryptor = Encryptor(key, MemoryFile())
    slots = SiteChecks(key, ROUND, "2").filled(0, np.array([0.5, 3.0, 0.0, 0.0, 0.0, 0.0]))
    unclipped = header.to_bytes() + encryptor.encrypt(slots)
    bodies = [the_body(key, an_update(number, 5), 0.5, number) for number in range(2)]
    with pytest.raises(AggregateOutOfBounds, match="a site or the server broke the protocol"):
        opened(key, the_sum(key, [*bodies, unclipped], 5), 5)


def test_a_sum_under_another_key_is_refused(key: SecretKey) -> None:
    bodies = [the_body(key, an_update(number, 5), 1.0, number) for number in range(3)]
    pieces = the_sum(key, bodies, 5)
    stranger = BodyHeader(Kind.SUM, key.scheme.fingerprint, bytes(16), 6)
    with pytest.raises(MalformedMessage, match="another key"):
        opened(key, [stranger.to_bytes(), *pieces[1:]], 5)


def test_a_body_shows_nothing_but_its_header(key: SecretKey) -> None:
    """Zeros and a large update look alike: the same length, and bytes that no test on frequencies tells apart."""
    bodies = [the_body(key, np.full(1019, value, dtype=np.float32), 1.0, 0) for value in (0.0, 0.1)]
    assert len(bodies[0]) == len(bodies[1])
    for body in bodies:
        counts = np.bincount(np.frombuffer(body[HEADER_BYTES:], dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        # chi squared with 255 degrees: mean 255, deviation 22.6; c0 is below q = 2^40 - 36,863, so its bytes are
        # uniform but for 2^-24
        assert np.sum((counts - expected) ** 2 / expected) < 255 + 8 * 22.6
