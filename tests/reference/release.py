"""Challenge, sum, masked output and average (docs/protocol.md 4, 9)."""

from __future__ import annotations

import hashlib
import math
import struct
from fractions import Fraction

from tests.reference.ring import add, expand, signed, subtract


def framed_hash(label: str, parts: list[bytes]) -> bytes:
    """SHA-256 over the label and each part behind its length, so that no two transcripts have the same bytes."""
    frames = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.sha256(b"moiety/2 " + label.encode() + b"\x00" + frames).digest()


def coin_commitment(round_number: int, set_digest: bytes, nonce_a: bytes) -> bytes:
    """H("A", round, set digest, n_A); the round in decimal digits."""
    return framed_hash("A", [str(round_number).encode(), set_digest, nonce_a])


def challenge(set_digest: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    """H(set digest, n_A, n_B)."""
    return framed_hash("challenge", [set_digest, nonce_a, nonce_b])


def total(shares: list[list[int]]) -> list[int]:
    out = [0] * len(shares[0])
    for share in shares:
        out = add(out, share)
    return out


def masked_sum(y_a: list[int], mask_seed: bytes) -> list[int]:
    """A's message to B: its sum minus PRG(t)."""
    return subtract(y_a, expand(mask_seed, "OUTPUT_MASK", len(y_a)))


def open_aggregate(vector: list[int], mask_seed: bytes, bound: int) -> list[int]:
    """The agent adds PRG(t) and refuses any coordinate beyond the bound."""
    opened = [signed(x) for x in add(vector, expand(mask_seed, "OUTPUT_MASK", len(vector)))]
    if any(abs(x) > bound for x in opened):
        raise ValueError("a coordinate is out of bounds")
    return opened


def to_float32(x: float) -> float:
    value: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return value


def average(opened: list[int], weight_sum: Fraction, fraction_bits: int) -> list[float]:
    """float64 of the integer, divided by 2^f * sum (exact in binary for a dyadic grid), then float32."""
    divisor = math.ldexp(float(weight_sum), fraction_bits)
    return [to_float32(float(x) / divisor) for x in opened]
