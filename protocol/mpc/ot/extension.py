"""The OT extension's columns: 128 base OTs of keys become n correlated rows.

The receiver, with choice bits x (one a row), expands both keys of every pair to columns t_j = G(k0_j) and G(k1_j) and
sends U_j = t_j xor G(k1_j) xor x. The sender, which knows the key that Delta_j chose, gets
q_j = G(k_j) xor Delta_j U_j = t_j xor Delta_j x. Read as rows: q_i = t_i xor x_i Delta. ``check.py`` catches a
receiver whose columns hide different x.

Column streams are read once: a session keeps the position it has reached, and :func:`next_position` moves it.

Shapes:   n a multiple of 64; columns uint8[128, n/8]; bit i of a column is (column[i // 8] >> (i % 8)) & 1
Reveals:  nothing of x to the sender, nothing of Delta to the receiver
Source:   Ishai, Kilian, Nissim & Petrank 2003; docs/protocol.md 7
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.prg import Usage, expand_bytes
from protocol.mpc.ot.base import BASE_OTS, Keys
from protocol.mpc.ot.check import EXTRA_ROWS, Columns

ROW_BITS_PER_ELEMENT: Final = 64
_STREAM_BLOCK_BYTES: Final = 16


def row_count(elements: int) -> int:
    """Rows one batch takes: 64 an element, and those that mask the consistency check."""
    return ROW_BITS_PER_ELEMENT * elements + EXTRA_ROWS


def column_bytes(elements: int) -> int:
    """Bytes of one column."""
    return row_count(elements) // 8


def next_position(position: int, elements: int) -> int:
    """Where in every column stream the next batch begins: after this one, at a cipher block's start."""
    end = position + column_bytes(elements)
    return end + -end % _STREAM_BLOCK_BYTES


def receiver_columns(keys0: Keys, keys1: Keys, choices: NDArray[np.uint8], position: int) -> tuple[Columns, Columns]:
    """The receiver's columns t, and U for the sender.

    Shapes:   choices uint8[n/8] -> uint8[128, n/8], uint8[128, n/8]
    """
    zero = _streams(keys0, len(choices), position)
    correction = _streams(keys1, len(choices), position)
    correction ^= zero
    correction ^= choices
    return zero, correction


def sender_columns(keys: Keys, delta: bytes, correction: Columns, position: int) -> Columns:
    """The sender's columns q.

    Shapes:   delta 16 bytes, correction uint8[128, n/8] -> uint8[128, n/8]
    """
    columns = _streams(keys, correction.shape[1], position)
    chosen = np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little")
    columns ^= correction & (-chosen)[:, np.newaxis]
    return columns


def _streams(keys: Keys, length: int, position: int) -> Columns:
    out = np.empty((BASE_OTS, length), dtype=np.uint8)
    for j in range(BASE_OTS):
        stream = expand_bytes(keys[j].tobytes(), Usage.OT_EXTENSION, length, start=position)
        out[j] = np.frombuffer(stream, dtype=np.uint8)
    return out
