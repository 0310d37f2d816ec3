"""Range check of a shared sketch (docs/protocol.md 6)."""

from __future__ import annotations

from tests.reference.ring import MODULUS, inner, stream

PROJECTIONS = 40


def range_bits(encoded_norm_log2: int, identity: bool) -> int:
    """h: log2(E) + 4 for the identity, log2(E) + 5 for four blocks."""
    return encoded_norm_log2 + (4 if identity else 5)


def projections(challenge: bytes, length: int) -> list[list[int]]:
    """40 rows of 0, +1, -1: two bits an entry, four entries a byte from the low bits up, row after row."""
    data = stream(challenge, "PROJECTIONS", 0, (PROJECTIONS * length + 3) // 4)
    codes = [(data[e // 4] >> (2 * (e % 4))) & 3 for e in range(PROJECTIONS * length)]
    values = [(0, 0, 1, -1)[code] for code in codes]
    return [values[r * length : (r + 1) * length] for r in range(PROJECTIONS)]


def operand_a(share: list[int], rows: list[list[int]], h: int) -> list[int]:
    """u = top 64-h bits of <r, share> + 2^(h-1)."""
    return [((inner(row, share) + 2 ** (h - 1)) % MODULUS) >> h for row in rows]


def operand_b(share: list[int], rows: list[list[int]], h: int) -> list[int]:
    """v = top 64-h bits of -<r, share>."""
    return [(-inner(row, share) % MODULUS) >> h for row in rows]


def share_a(u: list[int], products: list[int], h: int) -> list[int]:
    return [(x * x - x - 2 * p) % 2 ** (64 - h) for x, p in zip(u, products, strict=True)]


def share_b(v: list[int], products: list[int], h: int) -> list[int]:
    return [(x * x + x - 2 * p) % 2 ** (64 - h) for x, p in zip(v, products, strict=True)]


def opened(a: list[int], b: list[int], h: int) -> list[int]:
    """m = e (e - 1) mod 2^(64-h), one number a projection."""
    return [(x + y) % 2 ** (64 - h) for x, y in zip(a, b, strict=True)]


def passed(opened_values: list[int]) -> bool:
    return all(value == 0 for value in opened_values)


def verdict(share_of_a: list[int], share_of_b: list[int], rows: list[list[int]], h: int) -> bool:
    """The whole check in the clear: is e = u - v zero or one in every projection."""
    u, v = operand_a(share_of_a, rows, h), operand_b(share_of_b, rows, h)
    return all((x - y) % 2 ** (64 - h) in (0, 1) for x, y in zip(u, v, strict=True))
