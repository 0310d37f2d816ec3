"""The extension's consistency check: the receiver used the same choice bits in all 128 columns.

Why: a receiver whose columns disagree learns bits of Delta from the pads that come back, then every mask of the
sender, then sketches.

After U has arrived, the sender draws chi. The receiver answers with x~ = h(x) and t~_j = h(t_j) for each column j;
the sender demands h(q_j) = t~_j xor Delta_j x~ for every j, since an honest receiver has q_j = t_j xor Delta_j x.
h is a linear hash of an n-bit column to 128 bits, a polynomial over GF(2^128) at the point H = AES_chi(0): AES-GCM's
tag over the column as associated data, xor the tag of as many zeros. (Its nonce may repeat: no message is encrypted
under chi, and the tag of zeros is public.)

Hashing every column by itself is Roy's repair. With one hash over whole rows, as first published, a receiver may
pass with many wrong columns whose contributions cancel, and no concrete bound at 128 bits is known.

Guarantees: two columns that differ collide under h with probability at most (n/128 + 1) / 2^128, over chi, which is
drawn after both are fixed. Let k be the number of columns that differ from the x to which x~ commits. But for a
collision among the at most 128 distinct columns (probability at most 2^13 (n/128 + 1) / 2^128: below 2^-100 at a
million rows), each of the k columns makes the check depend on one bit of Delta: the receiver passes with probability
at most 2^-k; if it passes it knows those k bits, and the other 128 - k stay uniform. If it fails, the session ends
and Delta is deleted. The columns of one digit of Delta share one column of U, so they are wrong together: a bet is
on the whole digit. Bets on trees (``tree.py``) and on columns multiply: who learns k bits in all has passed with
probability 2^-k.
Hides:    the choice bits: the last 192 of x are random, belong to no OT and are thrown away; they fill a whole
          128-bit block of the polynomial, so x~ is uniform, and t~ follows from x~ and what the sender holds.
Source:   Keller, Orsini & Scholl 2015; Roy 2022 (SoftSpokenOT, section 4); docs/protocol.md 7
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from protocol.errors import ConsistencyCheckFailed, MalformedMessage
from protocol.mpc.ot.base import BASE_OTS

CHI_BYTES: Final = 16
HASH_BYTES: Final = 16
EXTRA_ROWS: Final = 192
CHECK_ANSWER_BYTES: Final = HASH_BYTES * (1 + BASE_OTS)

Columns = NDArray[np.uint8]


@dataclass(frozen=True)
class CheckAnswer:
    """x~ and the t~ of every column."""

    choices_hash: NDArray[np.uint8] = field(repr=False)
    column_hashes: NDArray[np.uint8] = field(repr=False)

    def to_bytes(self) -> bytes:
        return self.choices_hash.tobytes() + self.column_hashes.tobytes()

    @classmethod
    def from_bytes(cls, message: bytes) -> CheckAnswer:
        """Raises:   MalformedMessage, on a wrong length"""
        if len(message) != CHECK_ANSWER_BYTES:
            raise MalformedMessage(f"a check answer has {CHECK_ANSWER_BYTES} bytes, found {len(message)}")
        rows = np.frombuffer(message, dtype=np.uint8).reshape(1 + BASE_OTS, HASH_BYTES)
        return cls(rows[0], rows[1:])


def column_hashes(chi: bytes, columns: Columns) -> NDArray[np.uint8]:
    """h of every row of ``columns``.

    Shapes:   chi 16 bytes, columns uint8[m, n/8] -> uint8[m, 16]
    """
    gcm = AESGCM(chi)
    nonce = bytes(12)
    zero_tag = gcm.encrypt(nonce, b"", bytes(columns.shape[1]))
    tags = b"".join(gcm.encrypt(nonce, b"", memoryview(column)) for column in np.ascontiguousarray(columns))
    return np.frombuffer(tags, dtype=np.uint8).reshape(-1, HASH_BYTES) ^ np.frombuffer(zero_tag, dtype=np.uint8)


def check_answer(chi: bytes, choices: NDArray[np.uint8], columns: Columns) -> CheckAnswer:
    """The receiver's part: x~ and t~_j.

    Shapes:   choices uint8[n/8], columns uint8[128, n/8]
    """
    return CheckAnswer(column_hashes(chi, choices[np.newaxis])[0], column_hashes(chi, columns))


def verify_check(chi: bytes, delta: bytes, columns: Columns, claimed: CheckAnswer) -> None:
    """The sender's part; all columns are compared at once and none is named.

    Raises:   ConsistencyCheckFailed
    """
    delta_bits = np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little")
    expected = claimed.column_hashes ^ (delta_bits[:, np.newaxis] * claimed.choices_hash)
    if not hmac.compare_digest(column_hashes(chi, columns).tobytes(), expected.tobytes()):
        raise ConsistencyCheckFailed(
            "the peer's OT extension columns disagree about its choice bits: it deviated, or its message was altered; "
            "the session's secrets and unused correlations are deleted; tell both operators before opening another"
        )
