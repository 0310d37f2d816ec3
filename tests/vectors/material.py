"""Material of all vectors: named seeds, words, honest vectors; loading a written file."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from tests.reference import ring

FOLDER = Path(__file__).parent
K = 2048
SKETCHED = 5000
SHORT = 31
LOG2_E = 21
GRID = 32
EDGES = [0, 1, 2, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1]


def seed(label: str) -> bytes:
    return hashlib.sha256(b"test vectors: " + label.encode()).digest()


def words(label: str, length: int) -> list[int]:
    return ring.expand(seed(label), "SEEDED", length)


def octets(label: str, length: int) -> bytes:
    return ring.stream(seed(label), "SEEDED", 0, length)


def hexes(x: list[int]) -> list[str]:
    return [f"{v:016x}" for v in x]


def digest(x: list[int]) -> str:
    return hashlib.sha256(ring.to_bytes(x)).hexdigest()


def reals(label: str, length: int) -> list[float]:
    """Doubles in [-1, 1)."""
    return [(word >> 11) / 2**52 - 1.0 for word in words(label, length)]


def honest(label: str, length: int, norm_units: int) -> list[int]:
    """A ring vector whose L2 norm is just below ``norm_units``."""
    direction = reals(label, length)
    factor = norm_units / math.sqrt(math.fsum(x * x for x in direction))
    return [int(x * factor) % ring.MODULUS for x in direction]


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded
