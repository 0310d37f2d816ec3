"""What server A can do with ciphertexts alone, without any key and without a site's help (docs/threat_model.md)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.arithmetic.kernels import Scaling
from protocol.ckks.cipher import Adder, Decryptor, Encryptor
from protocol.ckks.ciphertext import SEED_BYTES, BodyHeader, Kind, SumChunk, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.update import average, body_header, contribution
from protocol.errors import AggregateOutOfBounds, MalformedMessage
from servers.scratch import MemoryFile

PARAMETERS = CkksParameters()
DIMENSION, SITES = 2500, 4
CHUNKS = 3


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return Scheme(PARAMETERS).secret_key(bytes(range(32)), "5d" * 32)


def update_of(site: int) -> NDArray[np.float32]:
    values = np.random.default_rng(site).normal(size=DIMENSION)
    return (values / (2 * np.linalg.norm(values))).astype(np.float32)


def body_of(key: SecretKey, site: int) -> list[bytes]:
    """The chunks of one site's contribution of weight 1."""
    header = body_header(Kind.CONTRIBUTION, key, DIMENSION)
    body = contribution(Encryptor(key, MemoryFile()), header, update_of(site), Scaling(), 1.0)
    return list(chunks_of(body, PARAMETERS, header))


def summed(key: SecretKey, bodies: list[list[bytes]]) -> list[bytes]:
    """What a server makes of some bodies, any of them as often as it likes."""
    adder, total = Adder(key.scheme, MemoryFile()), []
    for chunks in zip(*bodies, strict=True):
        for chunk in chunks:
            adder.add(chunk)
        total.append(adder.finish())
    return total


def opened(key: SecretKey, chunks: list[bytes], sites: int = SITES, least_weight: float = 1.0) -> NDArray[np.float32]:
    header: BodyHeader = body_header(Kind.SUM, key, DIMENSION)
    pieces = [header.to_bytes(), *chunks]
    return average(pieces, Decryptor(key, MemoryFile()), header, sites, least_weight, 1.0)


def test_one_sites_ciphertext_times_the_number_of_sites_passes_as_the_sum(key: SecretKey) -> None:
    """Claimed as a limit: every site then opens the victim's update, with the tolerance of four ciphertexts' noise."""
    victim = body_of(key, 1)
    found = opened(key, summed(key, [victim] * SITES))
    # one ciphertext's noise four times over, divided by the four weights: eight deviations of one value
    assert np.max(np.abs(found - update_of(1))) < 8 * PARAMETERS.value_deviation + 2.0**-24


def test_fewer_sites_than_were_released_do_not_pass_where_all_weights_are_one(key: SecretKey) -> None:
    bodies = [body_of(key, site) for site in range(SITES - 1)]
    with pytest.raises(AggregateOutOfBounds, match="weights of 4 contributions"):
        opened(key, summed(key, bodies))


def test_a_sum_in_clear_is_refused(key: SecretKey) -> None:
    polynomial = np.zeros(PARAMETERS.ring_degree, dtype=np.uint64)
    clear = SumChunk(polynomial, polynomial).to_bytes(PARAMETERS)
    with pytest.raises(MalformedMessage, match="not encrypted"):
        opened(key, [clear] * CHUNKS)


def seeds(chunks: list[bytes]) -> list[bytes]:
    return [chunk[:SEED_BYTES] for chunk in chunks]


def test_no_two_ciphertexts_share_their_public_seed(key: SecretKey) -> None:
    """With one c1 for two messages the server would subtract c0 from c0 and have the difference of the messages."""
    with ThreadPoolExecutor(2) as pool:
        bodies = list(pool.map(lambda site: body_of(key, site), [1, 1, 2, 2]))
    found = [seed for body in bodies for seed in seeds(body)]
    assert len(set(found)) == len(found) == 4 * CHUNKS


def test_a_forked_process_draws_other_seeds(key: SecretKey) -> None:
    """An encryptor made before the fork is used on both sides of it."""
    encryptor, values = Encryptor(key, MemoryFile()), np.full(8, 0.1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, Encryptor(key, MemoryFile()).encrypt(values)[:SEED_BYTES])
        os.write(writing, encryptor.encrypt(values)[:SEED_BYTES])
        os._exit(0)
    own = [encryptor.encrypt(values)[:SEED_BYTES] for _ in range(2)]
    os.waitpid(child, 0)
    theirs = os.read(reading, 2 * SEED_BYTES)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 2 * SEED_BYTES
    assert len({*own, theirs[:SEED_BYTES], theirs[SEED_BYTES:]}) == 4
