"""The OT extension's columns: 128 base OTs of keys become n correlated rows.

For every digit of Delta, k bits of it, the receiver has 2^k keys and the sender all of them but number Delta's digit
(``tree.py``). A key y expands to a stream G_y of n bits. The receiver takes u, the sum of all streams, and for each
bit b of the digit the column v_b, the sum of the streams with bit b of y set. The sender sums the streams with bit b
of y xor Delta set, which never needs the one it lacks, and gets v_b xor Delta_b u.

The receiver's choice bits x are u of the first digit: a random vector is all that is asked for. For every other digit
it sends U = u xor x, and the sender, adding Delta_b U, has q_b = v_b xor Delta_b x. Column by column that is the
relation of IKNP, which is the case of 128 digits of one bit. Read as rows: q_i = t_i xor x_i Delta. ``check.py``
catches a receiver whose U hide different x.

Streams are read once: a session keeps the position it has reached, and :func:`next_position` moves it. A stream is
the key stream of AES-256-GCM (counter mode, in the fastest code OpenSSL has for it), in pieces whose nonce is the
position where they begin.

Shapes:   n a multiple of 64; columns uint8[128, n/8]; bit i of a column is (column[i // 8] >> (i % 8)) & 1
Reveals:  nothing of x to the sender, nothing of Delta to the receiver
Source:   Roy 2022 (SoftSpokenOT, sections 3 and 4); Ishai, Kilian, Nissim & Petrank 2003; docs/protocol.md 7
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring
from protocol.mpc.ot.base import BASE_OTS, Keys
from protocol.mpc.ot.check import EXTRA_ROWS, Columns
from protocol.mpc.ot.digits import Extension
from protocol.mpc.ot.kernels import OtKernels

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
    extension: Extension, keys: Keys, length: int, position: int, kernels: OtKernels
) -> tuple[NDArray[np.uint8], Columns, Columns]:
    """The receiver's choice bits x, its columns t, and U for the sender.

    Shapes:   keys uint8[leaves, 32], length in bytes -> uint8[n/8], uint8[128, n/8], uint8[digits - 1, n/8]
    """
    columns = np.empty((BASE_OTS, length), dtype=np.uint8)
    sums = np.empty((extension.digits, length), dtype=np.uint8)
    room = _room()
    for digit, (column, leaf) in enumerate(extension.places()):
        _fold(keys[leaf], 0, position, columns[column], sums[digit], room, kernels)
    choices = sums[0].copy()
    sums[1:] ^= choices
    return choices, columns, sums[1:]


def sender_columns(
    extension: Extension, keys: Keys, delta: bytes, correction: Columns, position: int, kernels: OtKernels
) -> Columns:
    """The sender's columns q.

    Shapes:   keys uint8[leaves, 32] as ``puncture_trees`` orders them, delta 16 bytes,
              correction uint8[digits - 1, n/8] -> uint8[128, n/8]
    """
    columns = np.empty((BASE_OTS, correction.shape[1]), dtype=np.uint8)
    spare, room = np.empty(correction.shape[1], dtype=np.uint8), _room()
    chosen = -np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little")[:, np.newaxis]
    for digit, (column, leaf) in enumerate(extension.places()):
        _fold(keys[leaf], 1, position, columns[column], spare, room, kernels)
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
    kernels: OtKernels,
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
