"""The column hash is a polynomial over GF(2^128), and the check catches columns that disagree."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocol.errors import ConsistencyCheckFailed, MalformedMessage
from protocol.ot import extension

CHI = bytes(range(16))
DELTA = bytes.fromhex("00ff5aa5c30f8001fedcba9876543210")


def multiply(x: int, y: int) -> int:
    """GF(2^128) as GCM reads it: the first bit is the coefficient of 1 (NIST SP 800-38D, 6.3)."""
    product = 0
    for bit in range(127, -1, -1):
        if x >> bit & 1:
            product ^= y
        y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    return product


def polynomial(chi: bytes, column: bytes) -> bytes:
    """sum_i block_i H^(m+2-i), H = AES_chi(0), the last block filled with zeros."""
    point = int.from_bytes(Cipher(algorithms.AES(chi), modes.ECB()).encryptor().update(bytes(16)), "big")
    column += bytes(-len(column) % 16)
    total = 0
    for at in range(0, len(column), 16):
        total = multiply(total ^ int.from_bytes(column[at : at + 16], "big"), point)
    return multiply(total, point).to_bytes(16, "big")


@pytest.mark.parametrize("length", [8, 16, 24, 40, 160, 1000])
def test_column_hash_is_the_polynomial(length: int):
    columns = np.random.default_rng(length).integers(0, 256, (3, length), dtype=np.uint8)
    hashes = extension.column_hashes(CHI, columns)
    assert [h.tobytes() for h in hashes] == [polynomial(CHI, column.tobytes()) for column in columns]


def test_column_hash_is_linear():
    x, y = np.random.default_rng(1).integers(0, 256, (2, 5, 72), dtype=np.uint8)
    both = extension.column_hashes(CHI, x ^ y)
    np.testing.assert_array_equal(both, extension.column_hashes(CHI, x) ^ extension.column_hashes(CHI, y))
    assert not extension.column_hashes(CHI, np.zeros((1, 72), np.uint8)).any()
    assert (extension.column_hashes(bytes(16), x) != extension.column_hashes(CHI, x)).any()


def honest(seed: int = 5, length: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the receiver's columns t and the sender's q = t xor Delta_j x."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, 256, length, dtype=np.uint8)
    columns = rng.integers(0, 256, (128, length), dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
    return choices, columns, columns ^ bits[:, None] * choices


def test_an_honest_answer_passes_and_survives_the_wire():
    choices, columns, seen = honest()
    sent = extension.check_answer(CHI, choices, columns).to_bytes()
    assert len(sent) == extension.CHECK_ANSWER_BYTES == 2064
    extension.verify_check(CHI, DELTA, seen, extension.CheckAnswer.from_bytes(sent))


@pytest.mark.parametrize("place", [0, 15, 16, 1000, 2063])
def test_any_altered_byte_of_the_answer_fails(place: int):
    choices, columns, seen = honest()
    sent = bytearray(extension.check_answer(CHI, choices, columns).to_bytes())
    sent[place] ^= 1
    with pytest.raises(ConsistencyCheckFailed):
        extension.verify_check(CHI, DELTA, seen, extension.CheckAnswer.from_bytes(bytes(sent)))


@pytest.mark.parametrize("length", [0, 2063, 2065])
def test_an_answer_of_wrong_length_is_refused(length: int):
    with pytest.raises(MalformedMessage, match="2064 bytes"):
        extension.CheckAnswer.from_bytes(bytes(length))


def test_errors_that_cancel_in_a_sum_over_rows_are_caught():
    """Two wrong columns with the same error: a hash over whole rows could let them cancel, one per column can not."""
    choices, columns, seen = honest()
    chosen = np.flatnonzero(np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little"))[:2]
    seen = seen.copy()
    seen[chosen, 3] ^= 4
    with pytest.raises(ConsistencyCheckFailed):
        extension.verify_check(CHI, DELTA, seen, extension.check_answer(CHI, choices, columns))


def test_the_extra_rows_fill_a_block_of_the_polynomial():
    """The mask of x~ is uniform: among the last 192 bits a whole aligned 128-bit block, whatever the batch's size."""
    for elements in range(1, 10):
        start, end = 64 * elements, 64 * elements + extension.EXTRA_ROWS
        first_block = -(-start // 128)
        assert 128 * (first_block + 1) <= end


def test_repr_hides_hashes():
    choices, columns, _ = honest()
    assert repr(extension.check_answer(CHI, choices, columns)) == "CheckAnswer()"
