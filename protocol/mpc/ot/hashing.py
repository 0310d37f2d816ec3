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
        words = np.ascontiguousarray(rows).view(_ROW)
        shift = np.frombuffer(offset, dtype=_ROW)
        out = np.empty(len(rows), dtype=np.uint64)
        index = np.arange(first_index, first_index + len(rows), dtype=np.uint64)
        for at in range(0, len(rows), _CHUNK_ROWS):
            piece = slice(at, at + _CHUNK_ROWS)
            once = _permute(cipher, words[piece] ^ shift)
            first_words = once[:, 0].copy()
            once[:, 0] ^= index[piece]
            out[piece] = _permute(cipher, once)[:, 0] ^ first_words
        return out


def _permute(cipher: CipherContext, blocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    room = np.empty(blocks.nbytes + ROW_BYTES, dtype=np.uint8)  # update_into asks for one block of room
    written = cipher.update_into(blocks.data.cast("B"), room.data)
    return room[:written].view(_ROW).reshape(blocks.shape)
