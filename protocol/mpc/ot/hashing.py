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

ROW_BYTES: Final = 16
_CHUNK_ROWS: Final = 1 << 14
_ROW = np.dtype("<u8")


class RowHash:
    """H with one session's key.

    Shapes:   rows uint8[n, 16] -> uint64[n], the hash's first eight bytes
    """

    def __init__(self, transcript_key: bytes) -> None:
        self._key = transcript_key[:16]

    def __call__(self, rows: NDArray[np.uint8], first_index: int, offset: bytes = bytes(ROW_BYTES)) -> Ring:
        """Hash row r, xored with ``offset``, under index ``first_index`` + r."""
        # ECB only applies the permutation pi to each block; nothing is encrypted here.
        cipher = Cipher(algorithms.AES128(self._key), modes.ECB()).encryptor()  # noqa: S305
        words = np.ascontiguousarray(rows).view(_ROW).ravel()
        out = np.empty(len(rows), dtype=np.uint64)
        width = 2 * min(_CHUNK_ROWS, len(rows))
        shift = np.tile(np.frombuffer(offset, dtype=_ROW), width // 2)
        index, block = np.zeros(width, dtype=_ROW), np.empty(width, dtype=_ROW)
        once, twice = np.empty(width + 2, dtype=_ROW), np.empty(width + 2, dtype=_ROW)  # update_into asks for room
        for at in range(0, len(rows), _CHUNK_ROWS):
            piece = out[at : at + _CHUNK_ROWS]
            size = 2 * len(piece)
            np.bitwise_xor(words[2 * at : 2 * at + size], shift[:size], out=block[:size])
            _permute(cipher, block[:size], once)
            index[:size:2] = np.arange(first_index + at, first_index + at + len(piece), dtype=np.uint64)
            np.bitwise_xor(once[:size], index[:size], out=block[:size])
            _permute(cipher, block[:size], twice)
            np.bitwise_xor(twice[:size:2], once[:size:2], out=piece)
        return out


def _permute(cipher: CipherContext, blocks: NDArray[np.uint64], room: NDArray[np.uint64]) -> None:
    cipher.update_into(blocks.data.cast("B"), room.data.cast("B"))
