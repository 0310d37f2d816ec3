"""A forged sum leaves nothing decrypted behind; ciphertexts share no seed. Forging sums: attacks ``ckks-...``."""

from __future__ import annotations

import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.attack.ckks_attacks import CHUNKS, DIMENSION, PARAMETERS, ROUND, SITES, Held, sent, times
from host.files import MemoryFile
from protocol.ckks.ciphertext import SEED_BYTES, Kind, chunks_of
from protocol.ckks.scheme import Decryptor
from protocol.ckks.update import SumChecks, average, body_header
from protocol.errors import SumForged


@pytest.fixture(scope="module")
def held() -> Held:
    """Server A's ciphertexts of every site in this round, expanded."""
    return Held()


def test_nothing_that_was_decrypted_is_left_behind(held: Held) -> None:
    """The last ciphertext is the victim's: the average of the ones before it is overwritten as well."""
    body, kept = held.honest(), []
    body[2] = times(held.bodies[1][2], len(SITES))

    class Keeping(Decryptor):
        def decrypt(self, chunk: bytes) -> NDArray[np.float64]:
            kept.append(super().decrypt(chunk))
            return kept[-1]

    header = body_header(Kind.SUM, held.key, DIMENSION)
    pieces = [header.to_bytes(), *(chunk.to_bytes(PARAMETERS) for chunk in body)]
    with pytest.raises(SumForged) as caught:
        average(pieces, Keeping(held.key, MemoryFile()), header, SumChecks(held.key, ROUND, SITES), 1.0, 1.0)
    assert not kept[2].any()
    found = [frame.f_locals["out"] for frame, _ in traceback.walk_tb(caught.tb) if "out" in frame.f_locals]
    assert found
    assert not any(np.any(out) for out in found)


def test_no_two_ciphertexts_share_their_public_seed(held: Held) -> None:
    """With one c1 for two messages the server would subtract c0 from c0 and have the difference of the messages."""
    with ThreadPoolExecutor(2) as pool:
        bodies = list(pool.map(lambda site: sent(held.key, SITES[site]), [1, 1, 2, 2]))
    header = body_header(Kind.CONTRIBUTION, held.key, DIMENSION)
    found = [chunk[:SEED_BYTES] for body in bodies for chunk in chunks_of([body], PARAMETERS, header)]
    assert len(set(found)) == len(found) == 4 * CHUNKS


FORKING = """
import os
import numpy as np
from protocol.ckks.scheme import Encryptor
from protocol.ckks.ciphertext import SEED_BYTES
from protocol.ckks.scheme import Scheme
from host.files import MemoryFile
from harness.attack.ckks_attacks import PARAMETERS

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
