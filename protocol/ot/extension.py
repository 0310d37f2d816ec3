"""The OT extension: 128 base OTs of keys become n correlated rows, and a check of them (docs/protocol.md 7).

The check: the receiver used the same choice bits in all 128 columns. Why: a receiver whose columns disagree learns bits
of Delta from the pads that come back, then every mask of the sender, then sketches.

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
on the whole digit. Bets on trees (``base.py``) and on columns multiply: who learns k bits in all has passed with
probability 2^-k.
Hides:    the choice bits: the last 192 of x are random, belong to no OT and are thrown away; they fill a whole
          128-bit block of the polynomial, so x~ is uniform, and t~ follows from x~ and what the sender holds.
Source:   Keller, Orsini & Scholl 2015; Roy 2022 (SoftSpokenOT, section 4); docs/protocol.md 7

The columns: for every digit of Delta, k bits of it, the receiver has 2^k keys and the sender all of them but number
Delta's digit (``base.py``). A key y expands to a stream G_y of n bits. The receiver takes u, the sum of all streams,
and for each bit b of the digit the column v_b, the sum of the streams with bit b of y set. The sender sums the streams
with bit b of y xor Delta set, which never needs the one it lacks, and gets v_b xor Delta_b u.

The receiver's choice bits x are u of the first digit: a random vector is all that is asked for. For every other digit
it sends U = u xor x, and the sender, adding Delta_b U, has q_b = v_b xor Delta_b x. Column by column that is the
relation of IKNP, which is the case of 128 digits of one bit. Read as rows: q_i = t_i xor x_i Delta. The check
catches a receiver whose U hide different x.

Streams are read once: a session keeps the position it has reached, and :func:`next_position` moves it. A stream is
the key stream of AES-256-GCM (counter mode, in the fastest code OpenSSL has for it), in pieces whose nonce is the
position where they begin.

Shapes:   n a multiple of 64; columns uint8[128, n/8]; bit i of a column is (column[i // 8] >> (i % 8)) & 1
Reveals:  nothing of x to the sender, nothing of Delta to the receiver
Source:   Roy 2022 (SoftSpokenOT, sections 3 and 4); Ishai, Kilian, Nissim & Petrank 2003; docs/protocol.md 7
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring
from protocol.errors import ConsistencyCheckFailed, MalformedMessage
from protocol.ot import kernels
from protocol.ot.base import BASE_OTS, Extension, Keys

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


ROW_BITS_PER_ELEMENT: Final = 64
_POSITION_MULTIPLE: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_PIECE_BYTES: Final = 1 << 16
_WORD_BYTES: Final = 8
_TOGETHER: Final = 8
_ZEROS: Final = bytes(_PIECE_BYTES)


def row_count(elements: int) -> int:
    """Rows one batch takes: 64 per element, and those that mask the consistency check."""
    return ROW_BITS_PER_ELEMENT * elements + EXTRA_ROWS


def column_bytes(elements: int) -> int:
    """Bytes of one column."""
    return row_count(elements) // 8


def correction_bytes(elements: int, extension: Extension) -> int:
    """Bytes of U: one column for every digit but the first."""
    return (extension.digits - 1) * column_bytes(elements)


def next_position(position: int, elements: int) -> int:
    """Return the place in every stream where the next batch begins."""
    end = position + column_bytes(elements)
    return end + -end % _POSITION_MULTIPLE


def receiver_columns(
    extension: Extension, keys: Keys, length: int, position: int
) -> tuple[NDArray[np.uint8], Columns, Columns]:
    """The receiver's choice bits x, its columns t, and U for the sender.

    Shapes:   keys uint8[leaves, 32], length in bytes -> uint8[n/8], uint8[128, n/8], uint8[digits - 1, n/8]
    """
    columns = np.empty((BASE_OTS, length), dtype=np.uint8)
    sums = np.empty((extension.digits, length), dtype=np.uint8)
    room = _room()
    for digit, (column, leaf) in enumerate(extension.places()):
        _fold(keys[leaf], 0, position, columns[column], sums[digit], room)
    choices = sums[0].copy()
    sums[1:] ^= choices
    return choices, columns, sums[1:]


def sender_columns(extension: Extension, keys: Keys, delta: bytes, correction: Columns, position: int) -> Columns:
    """The sender's columns q.

    Shapes:   keys uint8[leaves, 32] as ``puncture_trees`` orders them, delta 16 bytes,
              correction uint8[digits - 1, n/8] -> uint8[128, n/8]
    """
    columns = np.empty((BASE_OTS, correction.shape[1]), dtype=np.uint8)
    spare, room = np.empty(correction.shape[1], dtype=np.uint8), _room()
    chosen = -np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little")[:, np.newaxis]
    for digit, (column, leaf) in enumerate(extension.places()):
        _fold(keys[leaf], 1, position, columns[column], spare, room)
        if digit:
            columns[column] ^= chosen[column] & correction[digit - 1]
    return columns


def _room() -> NDArray[np.uint8]:
    """Room for one piece of as many streams as are folded together, and a tag behind the last of them."""
    return np.empty(_TOGETHER * _PIECE_BYTES + _TAG_BYTES, dtype=np.uint8)


def _fold(
    keys: Keys,
    first: int,
    position: int,
    columns: Columns,
    total: NDArray[np.uint8],
    room: NDArray[np.uint8],
) -> None:
    """Fill in one digit's columns and the sum of its streams; row 0 counts as zero if ``first`` is 1.

    Streams are folded while they are in the processor's cache, a few at a time; then the sums of these.
    """
    ciphers = [None if row < first else AESGCM(key.tobytes()) for row, key in enumerate(keys)]
    together = min(_TOGETHER, len(ciphers))
    low = together.bit_length() - 1
    for start in range(0, len(total), _PIECE_BYTES):
        piece = slice(start, min(start + _PIECE_BYTES, len(total)))
        words = (piece.stop - start) // _WORD_BYTES
        nonce = (position + start).to_bytes(_NONCE_BYTES, "big")
        found = np.zeros((len(columns), words), dtype=np.uint64)
        sums = np.empty((len(ciphers) // together, words), dtype=np.uint64)
        for i in range(len(sums)):
            streams = _streams(ciphers[together * i : together * (i + 1)], nonce, words, room)
            kernels.fold(streams, found[:low], sums[i])
        kernels.fold(sums, found[low:], total[piece].view(np.uint64))
        columns[:, piece] = found.view(np.uint8)


def _streams(ciphers: Sequence[AESGCM | None], nonce: bytes, words: int, room: NDArray[np.uint8]) -> Ring:
    """One piece of some streams, one a row; zeros where there is no key."""
    size = _WORD_BYTES * words
    zeros = memoryview(_ZEROS)[:size]
    for row, cipher in enumerate(ciphers):
        if cipher is None:
            room[row * size : (row + 1) * size] = 0
        else:  # the tag behind a stream is overwritten by the next row's stream; that of the last is not read
            cipher.encrypt_into(nonce, zeros, None, room.data[row * size : (row + 1) * size + _TAG_BYTES])
    return room[: len(ciphers) * size].view(np.uint64).reshape(len(ciphers), words)
