"""The hash that turns correlated rows into independent pads, at AES speed.

H(x, i) = pi(pi(x) xor i) xor pi(x), pi = AES-128 keyed from the session's transcript; i counts rows over the whole
session and never repeats. It is tweakable and correlation robust with pi as an ideal cipher, which is what the
rows q and q xor Delta need.

Source:   Guo, Katz, Wang & Yu 2020 (TMMO); docs/protocol.md 7
"""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from protocol.arithmetic.ring import Ring
from protocol.mpc.ot.kernels import NUMBA, OtKernels

ROW_BYTES: Final = 16
_CHUNK_ROWS: Final = 1 << 13
_ROW = np.dtype("<u8")


class RowHash:
    """H with one session's key.

    Shapes:   rows uint8[n, 16] -> uint64[n], the hash's first eight bytes
    """

    def __init__(self, transcript_key: bytes, kernels: OtKernels = NUMBA) -> None:
        self._key = transcript_key[:16]
        self._kernels = kernels

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
            self._kernels.shift_rows(words, shift, block)
            words = block
        _permute(cipher, words, room.once)
        self._kernels.tweak(once, first, block)
        _permute(cipher, block, room.twice)
        self._kernels.first_words(once, twice, out)


class _Room:
    """The room that one piece needs; ``update_into`` takes room behind what it writes."""

    def __init__(self, width: int) -> None:
        self.block = np.empty(width, dtype=_ROW)
        self.once, self.twice = np.empty(width + 2, dtype=_ROW), np.empty(width + 2, dtype=_ROW)


def _permute(cipher: CipherContext, blocks: NDArray[np.uint64], room: NDArray[np.uint64]) -> None:
    cipher.update_into(blocks.data.cast("B"), room.data.cast("B"))
