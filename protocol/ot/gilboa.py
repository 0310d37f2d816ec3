"""Products modulo 2^64 from correlated rows, bit by bit, and the hash that pads them.

The hash turns correlated rows into independent pads, at AES speed.
H(x, i) = pi(pi(x) xor i) xor pi(x), pi = AES-128 keyed from the session's transcript; i counts rows over the whole
session and never repeats. It is tweakable and correlation robust with pi as an ideal cipher, which is what the
rows q and q xor Delta need.

Source:   Guo, Katz, Wang & Yu 2020 (TMMO); docs/protocol.md 7

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

from collections.abc import Iterator
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from protocol.arithmetic.kernels import transpose_bits
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage
from protocol.ot import kernels
from protocol.ot.extension import ROW_BITS_PER_ELEMENT, Columns
from protocol.ot.kernels import PACKED_WORDS

_CHUNK_ROWS: Final = 1 << 13
_ROW = np.dtype("<u8")


class RowHash:
    """H with one session's key.

    Shapes:   rows uint8[n, 16] -> uint64[n], the hash's first eight bytes
    """

    def __init__(self, transcript_key: bytes) -> None:
        self._key = transcript_key[:16]

    def __call__(self, rows: NDArray[np.uint8], first_index: int, offset: bytes | None = None) -> Ring:
        """Hash row r, xored with ``offset`` of 16 bytes where there is one, under index ``first_index`` + r."""
        # ECB only applies the permutation pi to each block; nothing is encrypted here.
        cipher = Cipher(algorithms.AES128(self._key), modes.ECB()).encryptor()  # noqa: S305
        words = np.ascontiguousarray(rows).view(_ROW).ravel()
        shift = None if offset is None else np.frombuffer(offset, dtype=_ROW)
        out = np.empty(len(rows), dtype=np.uint64)
        room = _Room(2 * min(_CHUNK_ROWS, len(rows)))
        for at in range(0, len(rows), _CHUNK_ROWS):
            piece = out[at : at + _CHUNK_ROWS]
            self._hash(cipher, words[2 * at : 2 * at + 2 * len(piece)], first_index + at, shift, room, piece)
        return out

    def _hash(self, cipher: CipherContext, words: Ring, first: int, shift: Ring | None, room: _Room, out: Ring) -> None:
        block, once, twice = room.block[: words.size], room.once[: words.size], room.twice[: words.size]
        if shift is not None:
            kernels.shift_rows(words, shift, block)
            words = block
        _permute(cipher, words, room.once)
        kernels.tweak(once, first, block)
        _permute(cipher, block, room.twice)
        kernels.first_words(once, twice, out)


class _Room:
    """The room that one piece needs; ``update_into`` takes room behind what it writes."""

    def __init__(self, width: int) -> None:
        self.block = np.empty(width, dtype=_ROW)
        self.once, self.twice = np.empty(width + 2, dtype=_ROW), np.empty(width + 2, dtype=_ROW)


def _permute(cipher: CipherContext, blocks: NDArray[np.uint64], room: NDArray[np.uint64]) -> None:
    cipher.update_into(blocks.data.cast("B"), room.data.cast("B"))


_UNSENT_WORDS: Final = 2
ELEMENT_MESSAGE_BYTES: Final = 4 * (PACKED_WORDS - _UNSENT_WORDS)
_WIRE: Final = np.dtype("<u4")
_COLUMN_BYTES: Final = ROW_BITS_PER_ELEMENT // 8
_TILE_ELEMENTS: Final = 256


def sender_terms(
    row_hash: RowHash, columns: Columns, delta: bytes, elements: int, *, first_row: int
) -> tuple[Ring, bytes, Ring]:
    """B's vector b, its messages, and its terms of c_B, one per element.

    Shapes:   columns uint8[128, n/8] with n >= 64 m -> uint64[m], 252 m bytes, uint64[m]
    """
    own, terms = np.empty(elements, dtype=np.uint64), np.empty(elements, dtype=np.uint64)
    messages = np.empty((elements, PACKED_WORDS - _UNSENT_WORDS), dtype=_WIRE)
    for tile in _tiles(elements):
        rows, index = _rows(columns, tile), first_row + ROW_BITS_PER_ELEMENT * tile.start
        zero, one = row_hash(rows, index), row_hash(rows, index, delta)
        own[tile] = one[::ROW_BITS_PER_ELEMENT] - zero[::ROW_BITS_PER_ELEMENT]
        packed, terms[tile] = kernels.sender_products(zero, one, own[tile])
        messages[tile] = packed[:, _UNSENT_WORDS:]
    return own, messages.tobytes(), terms


def receiver_terms(
    row_hash: RowHash, columns: Columns, own: Ring, message: bytes | memoryview, *, first_row: int
) -> Ring:
    """A's terms of c_A, one per element.

    Shapes:   columns uint8[128, n/8] with n >= 64 m, own uint64[m], message 252 m bytes -> uint64[m]
    Raises:   MalformedMessage, on a wrong length
    """
    if len(message) != ELEMENT_MESSAGE_BYTES * own.size:
        raise MalformedMessage(
            f"the products of {own.size} elements take {ELEMENT_MESSAGE_BYTES * own.size} bytes, found {len(message)}"
        )
    messages, terms = np.frombuffer(message, dtype=_WIRE).reshape(own.size, -1), np.empty_like(own)
    for tile in _tiles(own.size):
        pads = row_hash(_rows(columns, tile), first_row + ROW_BITS_PER_ELEMENT * tile.start)
        packed = np.zeros((tile.stop - tile.start, PACKED_WORDS), dtype=np.uint32)
        packed[:, _UNSENT_WORDS:] = messages[tile]
        terms[tile] = kernels.receiver_products(pads, packed, own[tile])
    return terms


def _tiles(elements: int) -> Iterator[slice]:
    """All elements in pieces whose rows stay in the processor's cache from the transposition to the products."""
    for start in range(0, elements, _TILE_ELEMENTS):
        yield slice(start, min(start + _TILE_ELEMENTS, elements))


def _rows(columns: Columns, tile: slice) -> NDArray[np.uint8]:
    return transpose_bits(columns[:, _COLUMN_BYTES * tile.start : _COLUMN_BYTES * tile.stop])
