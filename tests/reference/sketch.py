"""Public random linear map from the challenge (docs/protocol.md 5)."""

from __future__ import annotations

from tests.reference.ring import MODULUS, expand

BLOCKS = 4


def entries(challenge: bytes, dimension: int, k: int) -> list[list[tuple[int, int]]]:
    """Four (row, sign) pairs for each coordinate: the matrix S by columns."""
    size = k // BLOCKS
    columns = []
    for word in expand(challenge, "SKETCH", dimension):
        column = []
        for block in range(BLOCKS):
            lane = (word >> (16 * block)) & 0xFFFF
            column.append((block * size + lane % size, -1 if lane >> 15 else 1))
        columns.append(column)
    return columns


def sketch(challenge: bytes, x: list[int], k: int) -> list[int]:
    """S x over the ring; S is the identity when x has at most k coordinates."""
    if len(x) <= k:
        return list(x)
    out = [0] * k
    for value, column in zip(x, entries(challenge, len(x), k), strict=True):
        for row, sign in column:
            out[row] = (out[row] + sign * value) % MODULUS
    return out
