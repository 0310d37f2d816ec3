"""GF(2^128) in GCM's bit order, the polynomial hash, OT's check and Gilboa's product (docs/protocol.md 7)."""

from __future__ import annotations

from tests.reference.ring import MODULUS, aes_block

ONE = bytes([0x80]) + bytes(15)
REDUCTION = 0xE1 << 120


def multiply(left: bytes, right: bytes) -> bytes:
    """NIST SP 800-38D, algorithm 1: bit 0 is the top bit of the first byte."""
    x, v, z = int.from_bytes(left, "big"), int.from_bytes(right, "big"), 0
    for bit in range(127, -1, -1):
        if (x >> bit) & 1:
            z ^= v
        v = (v >> 1) ^ (REDUCTION if v & 1 else 0)
    return z.to_bytes(16, "big")


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(left, right, strict=True))


def polynomial_hash(chi: bytes, column: bytes) -> bytes:
    """The column cut into 16-byte blocks X_1..X_m (zeros at the end): sum of X_i * H^(m+2-i), H = AES_chi(0).

    GHASH without its length block, which is what makes it linear.
    """
    point, total = aes_block(chi, bytes(16)), bytes(16)
    for at in range(0, len(column), 16):
        total = multiply(xor(total, column[at : at + 16].ljust(16, b"\0")), point)
    return multiply(total, point)


def bit(data: bytes, i: int) -> int:
    return (data[i // 8] >> (i % 8)) & 1


def sender_columns(t_columns: list[bytes], choices: bytes, delta: bytes) -> list[bytes]:
    """The sender's columns of an honest extension: q_j = t_j + Delta_j x."""
    return [xor(t, choices) if bit(delta, j) else t for j, t in enumerate(t_columns)]


def check_holds(q_hashes: list[bytes], t_hashes: list[bytes], x_hash: bytes, delta: bytes) -> bool:
    """h(q_j) = h(t_j) + Delta_j h(x) for every column j."""
    return q_hashes == sender_columns(t_hashes, x_hash, delta)


def rows_of(columns: list[bytes]) -> list[bytes]:
    """Row i holds bit i of every column."""
    rows = []
    for i in range(8 * len(columns[0])):
        row = sum(bit(column, i) << j for j, column in enumerate(columns))
        rows.append(row.to_bytes(len(columns) // 8, "little"))
    return rows


def row_hash(key: bytes, row: bytes, index: int) -> int:
    """The first eight bytes of pi(pi(x) xor i) xor pi(x), pi = AES with the session's key, i in little-endian bytes."""
    once = aes_block(key, row)
    twice = aes_block(key, xor(once, index.to_bytes(16, "little")))
    return int.from_bytes(xor(twice, once)[:8], "little")


def gilboa_send(zero: list[int], one: list[int], b: int) -> tuple[int, bytes]:
    """The sender's share of a*b, and its 64 messages: message t is pad0 + b - pad1, of which 64-t bits are needed.

    Packed bit by bit from the low end: 64 + 63 + ... + 1 bits are 260 bytes.
    """
    packed, at = 0, 0
    for t in range(64):
        packed |= ((zero[t] + b - one[t]) % 2 ** (64 - t)) << at
        at += 64 - t
    share = -sum(pad << t for t, pad in enumerate(zero)) % MODULUS
    return share, packed.to_bytes(260, "little")


def gilboa_receive(chosen: list[int], packed: bytes, a: int) -> int:
    """The receiver's share of a*b: bit t of a chose the pad and says whether message t counts."""
    rest, share = int.from_bytes(packed, "little"), 0
    for t in range(64):
        message = rest % 2 ** (64 - t)
        rest >>= 64 - t
        share += (chosen[t] + ((a >> t) & 1) * message) << t
    return share % MODULUS
