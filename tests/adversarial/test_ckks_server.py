"""What server A can do with ciphertexts alone, without any key and without a site's help (docs/threat_model.md)."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from host.memory_file import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.check import SiteChecks, SumChecks
from protocol.ckks.cipher import Decryptor, Encryptor
from protocol.ckks.ciphertext import SEED_BYTES, BodyHeader, Kind, SeededChunk, SumChunk, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.streams import Streams
from protocol.ckks.update import average, body_header, contribution
from protocol.errors import MalformedMessage, SumForged

PARAMETERS = CkksParameters()
Q = PARAMETERS.modulus
DIMENSION, SITES = 2500, 4
NAMES = tuple(f"hospital-{site}" for site in range(SITES))
CHUNKS = 3
ROUND, EARLIER = "a0" * 32, "a1" * 32

Body = list[SumChunk]


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return Scheme(PARAMETERS).secret_key(bytes(range(32)), "5d" * 32)


@pytest.fixture(scope="module")
def held(key: SecretKey) -> list[Body]:
    """What server A holds of this round: every site's ciphertexts, expanded."""
    return [expanded(key, body_of(key, site)) for site in range(SITES)]


def update_of(site: int) -> NDArray[np.float32]:
    values = np.random.default_rng(site).normal(size=DIMENSION)
    return (values / (2 * np.linalg.norm(values))).astype(np.float32)


def body_of(key: SecretKey, site: int, round_digest: str = ROUND) -> list[bytes]:
    """The chunks of one site's contribution of weight 1."""
    header = body_header(Kind.CONTRIBUTION, key, DIMENSION)
    checks = SiteChecks(key, round_digest, NAMES[site])
    body = contribution(Encryptor(key, MemoryFile()), header, update_of(site), Scaling(), 1.0, checks)
    return list(chunks_of(body, PARAMETERS, header))


def expanded(key: SecretKey, chunks: Sequence[bytes]) -> Body:
    """Both polynomials of fresh ciphertexts, as server A computes them from the public seed."""
    streams = Streams(key.scheme, MemoryFile())
    return [streams.summed(streams.load_seeded(SeededChunk.parse(chunk, PARAMETERS))) for chunk in chunks]


def times(chunk: SumChunk, factor: int | NDArray[np.uint64]) -> SumChunk:
    """The ciphertext of the message times a constant, or times a polynomial given as NTT values."""
    multiplier = np.asarray(factor, dtype=object)
    return SumChunk(*(((p.astype(object) * multiplier) % Q).astype(np.uint64) for p in (chunk.c0, chunk.c1)))


def plus(one: SumChunk, other: SumChunk) -> SumChunk:
    return SumChunk((one.c0 + other.c0) % np.uint64(Q), (one.c1 + other.c1) % np.uint64(Q))


def combined(bodies: Sequence[Body], factors: Sequence[int]) -> Body:
    """A whole-number combination of the sites' ciphertexts, piece by piece."""
    made = [times(chunk, factors[0]) for chunk in bodies[0]]
    for body, factor in zip(bodies[1:], factors[1:], strict=True):
        made = [plus(a, times(b, factor)) for a, b in zip(made, body, strict=True)]
    return made


def honest(held: Sequence[Body]) -> Body:
    return combined(held, [1] * len(held))


def encoded(key: SecretKey, values: NDArray[np.float64], scale: float = PARAMETERS.scale) -> NDArray[np.uint64]:
    """A plaintext's NTT values, which anybody can compute."""
    plain = key.scheme.seal.Plaintext()
    key.scheme.seal.CKKSEncoder(key.scheme.context).encode(values.tolist(), scale, plain)
    return np.array([plain[i] for i in range(PARAMETERS.ring_degree)], dtype=np.uint64)


def opened(key: SecretKey, body: Body, least_weight: float = 1.0) -> NDArray[np.float32]:
    header: BodyHeader = body_header(Kind.SUM, key, DIMENSION)
    pieces = [header.to_bytes(), *(chunk.to_bytes(PARAMETERS) for chunk in body)]
    checks = SumChecks(key, ROUND, NAMES)
    return average(pieces, Decryptor(key, MemoryFile()), header, checks, least_weight, 1.0)


def test_the_honest_sum_opens(key: SecretKey, held: list[Body]) -> None:
    expected = np.mean([update_of(site).astype(np.float64) for site in range(SITES)], axis=0)
    off = 8 * PARAMETERS.value_deviation * 2
    assert np.max(np.abs(opened(key, honest(held)) - expected)) < 2 * off / SITES + 2.0**-24


def test_one_sites_ciphertext_times_the_number_of_sites_is_not_opened(key: SecretKey, held: list[Body]) -> None:
    """Weight and norm are those of an honest sum, and the average would be the victim's update."""
    with pytest.raises(SumForged, match=r"ciphertext 0 of the sum is not that of the 4 released sites.*server A"):
        opened(key, combined(held, [0, SITES, 0, 0]))


@pytest.mark.parametrize(
    "factors",
    [(0, 2, 1, 1), (1, 1, 2, 0), (2, 2, 0, 0), (-1, 3, 1, 1), (1, 1, 1, 0), (1, 1, 1, 2), (0, 0, 0, 0), (2, 3, -3, 2)],
    ids=str,
)
def test_no_other_whole_number_combination_is_opened(
    key: SecretKey, held: list[Body], factors: tuple[int, ...]
) -> None:
    """Least weight 0: nothing but the check values may stop it. Zeros would be a ciphertext in clear."""
    error = SumForged if any(factors) else MalformedMessage
    with pytest.raises(error):
        opened(key, combined(held, factors), least_weight=0.0)


@pytest.mark.parametrize("place", range(CHUNKS))
def test_one_ciphertext_among_many_is_enough_to_be_caught(key: SecretKey, held: list[Body], place: int) -> None:
    body = honest(held)
    body[place] = times(held[1][place], SITES)
    with pytest.raises(SumForged, match=f"ciphertext {place} of the sum"):
        opened(key, body)


def test_ciphertexts_keep_their_place(key: SecretKey, held: list[Body]) -> None:
    first, second, third = honest(held)
    with pytest.raises(SumForged, match="ciphertext 1"):
        opened(key, [first, third, second])


def test_an_earlier_rounds_ciphertext_in_place_of_this_rounds(key: SecretKey, held: list[Body]) -> None:
    """The same site, the same update: only the round is another one."""
    old = expanded(key, body_of(key, 2, EARLIER))
    with pytest.raises(SumForged):
        opened(key, honest([held[0], held[1], old, held[3]]))


def test_a_known_vector_cannot_be_added(key: SecretKey, held: list[Body]) -> None:
    """A thousandth of the clip norm on one coordinate, with the check values left alone or moved at a guess."""
    for moved in (0.0, 1e-3 / 32, -1e-3 / 32):
        offset = np.zeros(PARAMETERS.slots)
        offset[7] = 1e-3
        offset[PARAMETERS.value_slots :] = moved
        body = honest(held)
        body[0] = SumChunk((body[0].c0 + encoded(key, offset)) % np.uint64(Q), body[0].c1)
        with pytest.raises(SumForged):
            opened(key, body)


def test_slots_cannot_be_multiplied_one_by_one(key: SecretKey, held: list[Body]) -> None:
    """A polynomial multiplies every slot by a number of its own: here the data of one site by 4, all others by 0.

    Coefficients are whole numbers, so multipliers are never exactly 1 on the check slots and 4 on the others.
    """
    mask = np.full(PARAMETERS.slots, float(SITES))
    mask[PARAMETERS.value_slots :] = 1.0
    multiplier = encoded(key, mask, scale=1.0)
    with pytest.raises(SumForged):
        opened(key, [times(chunk, multiplier) for chunk in held[1]], least_weight=0.0)
    extra = encoded(key, mask - 1.0, scale=1.0)
    body = [plus(chunk, times(victim, extra)) for chunk, victim in zip(honest(held), held[1], strict=True)]
    with pytest.raises(SumForged):
        opened(key, body, least_weight=0.0)


def test_noise_on_the_second_polynomial_is_noticed_once_it_matters(key: SecretKey, held: list[Body]) -> None:
    """What it adds depends on the secret key, so whether it is noticed may: one bit a discarded round, which is why
    sites stop after a few (``protocol.policy.MOST_DISCARDED_SUMS``)."""
    body = honest(held)
    body[0] = SumChunk(body[0].c0, (body[0].c1 + np.uint64(2**26)) % np.uint64(Q))
    with pytest.raises(SumForged):
        opened(key, body)


def test_a_sum_in_clear_is_refused(key: SecretKey) -> None:
    polynomial = np.zeros(PARAMETERS.ring_degree, dtype=np.uint64)
    with pytest.raises(MalformedMessage, match="not encrypted"):
        opened(key, [SumChunk(polynomial, polynomial)] * CHUNKS)


def test_nothing_that_was_decrypted_is_left_behind(key: SecretKey, held: list[Body]) -> None:
    """The last ciphertext is the victim's: the average of the ones before it is overwritten as well."""
    body, kept = honest(held), []
    body[2] = times(held[1][2], SITES)

    class Keeping(Decryptor):
        def decrypt(self, chunk: bytes) -> NDArray[np.float64]:
            kept.append(super().decrypt(chunk))
            return kept[-1]

    header = body_header(Kind.SUM, key, DIMENSION)
    pieces = [header.to_bytes(), *(chunk.to_bytes(PARAMETERS) for chunk in body)]
    with pytest.raises(SumForged) as caught:
        average(pieces, Keeping(key, MemoryFile()), header, SumChecks(key, ROUND, NAMES), 1.0, 1.0)
    assert not kept[2].any()
    found = [frame.f_locals["out"] for frame, _ in traceback.walk_tb(caught.tb) if "out" in frame.f_locals]
    assert found
    assert not any(np.any(out) for out in found)


def seeds(chunks: list[bytes]) -> list[bytes]:
    return [chunk[:SEED_BYTES] for chunk in chunks]


def test_no_two_ciphertexts_share_their_public_seed(key: SecretKey) -> None:
    """With one c1 for two messages the server would subtract c0 from c0 and have the difference of the messages."""
    with ThreadPoolExecutor(2) as pool:
        bodies = list(pool.map(lambda site: body_of(key, site), [1, 1, 2, 2]))
    found = [seed for body in bodies for seed in seeds(body)]
    assert len(set(found)) == len(found) == 4 * CHUNKS


FORKING = """
import os
import numpy as np
from protocol.ckks.cipher import Encryptor
from protocol.ckks.ciphertext import SEED_BYTES
from protocol.ckks.scheme import Scheme
from host.memory_file import MemoryFile
from tests.adversarial.test_ckks_server import PARAMETERS

key = Scheme(PARAMETERS).secret_key(bytes(range(32)), "5d" * 32)
encryptor, values = Encryptor(key, MemoryFile()), np.full(8, 0.1)
child = os.fork()
if child == 0:
    print(Encryptor(key, MemoryFile()).encrypt(values)[:SEED_BYTES].hex(), flush=True)
    print(encryptor.encrypt(values)[:SEED_BYTES].hex(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for _ in range(2):
    print(encryptor.encrypt(values)[:SEED_BYTES].hex())
"""


def test_a_forked_process_draws_other_seeds() -> None:
    """An encryptor made before the fork is used on both sides of it.

    In a process of its own: to fork one that runs threads, as this one may, can leave the child waiting for a lock.
    """
    found = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=120)
    seeds = found.stdout.split()
    assert [len(seed) for seed in seeds] == [2 * SEED_BYTES] * 4
    assert len(set(seeds)) == 4
