"""Products modulo 2^64 from correlated rows, bit by bit.

For bit t of A's element a, A holds the row t_i and B the row q_i = t_i xor a_t Delta. With pads H_0 = H(q_i) and
H_1 = H(q_i xor Delta), B sends m = H_0 + b - H_1; A adds it to its pad when a_t = 1 and has H_0 + a_t b in both cases.
Times 2^t only the low 64 - t bits of m count, so only they are sent. Summed over t, A has c_A and B has
c_B = -sum_t 2^t H_0, with c_A + c_B = a b.

b is random anyway, so B takes b = H_1 - H_0 of the row of t = 0: the message of that row is then zero and not sent,
which leaves 63 + 62 + ... + 1 bits, 252 bytes per element. b stays uniform for A: whichever of the two pads of row 0
A has, b is that pad or its negative, plus or minus the other, which is pseudo-random to A and used nowhere else in
what A gets; the pads that mask b in the other rows are independent of it. A never has both pads of a row, or it would
know Delta.

A message for one batch is computed from its own rows only; rows are hashed under a session-wide index, once.

Reveals:  b masked by pads to A; nothing to B
Source:   Gilboa 1999, section 4.1; docs/protocol.md 7
"""

from __future__ import annotations

from typing import Final

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage
from protocol.mpc.ot.check import Columns
from protocol.mpc.ot.extension import ROW_BITS_PER_ELEMENT
from protocol.mpc.ot.hashing import RowHash
from protocol.mpc.ot.kernels import PACKED_WORDS, OtKernels

_UNSENT_WORDS: Final = 2
ELEMENT_MESSAGE_BYTES: Final = 4 * (PACKED_WORDS - _UNSENT_WORDS)
_WIRE: Final = np.dtype("<u4")


def sender_terms(
    row_hash: RowHash, columns: Columns, delta: bytes, elements: int, *, first_row: int, kernels: OtKernels
) -> tuple[Ring, bytes, Ring]:
    """B's vector b, its messages, and its terms of c_B, one per element.

    Shapes:   columns uint8[128, n/8] with n >= 64 m -> uint64[m], 252 m bytes, uint64[m]
    """
    rows = kernels.ring.transpose_bits(columns)[: ROW_BITS_PER_ELEMENT * elements]
    zero, one = row_hash(rows, first_row), row_hash(rows, first_row, delta)
    own = one[::ROW_BITS_PER_ELEMENT] - zero[::ROW_BITS_PER_ELEMENT]
    packed, terms = kernels.sender_products(zero, one, own)
    return own, packed[:, _UNSENT_WORDS:].astype(_WIRE, copy=False).tobytes(), terms


def receiver_terms(
    row_hash: RowHash, columns: Columns, own: Ring, message: bytes | memoryview, *, first_row: int, kernels: OtKernels
) -> Ring:
    """A's terms of c_A, one per element.

    Shapes:   columns uint8[128, n/8] with n >= 64 m, own uint64[m], message 252 m bytes -> uint64[m]
    Raises:   MalformedMessage, on a wrong length
    """
    if len(message) != ELEMENT_MESSAGE_BYTES * own.size:
        raise MalformedMessage(
            f"the products of {own.size} elements take {ELEMENT_MESSAGE_BYTES * own.size} bytes, found {len(message)}"
        )
    packed = np.zeros((own.size, PACKED_WORDS), dtype=np.uint32)
    packed[:, _UNSENT_WORDS:] = np.frombuffer(message, dtype=_WIRE).reshape(own.size, -1)
    rows = kernels.ring.transpose_bits(columns)[: ROW_BITS_PER_ELEMENT * own.size]
    return kernels.receiver_products(row_hash(rows, first_row), packed, own)
