"""Where every random byte of a server comes from: the system, or, on loopback only, a seed (docs/protocol.md 3, 9)."""

from __future__ import annotations

import hashlib
import secrets

from protocol.arithmetic.prg import Usage, derive, expand_bytes


class Randomness:
    """Random bytes by purpose.

    With a seed the bytes depend on the seed and the label alone, not on the order of calls, so that a federation
    can be run again bit for bit; ``settings.py`` refuses a seed on any address but loopback.
    """

    def __init__(self, seed: int | None, party: str) -> None:
        self._root = None if seed is None else hashlib.sha256(f"moiety/2 seeded {seed} {party}".encode()).digest()

    @property
    def seeded(self) -> bool:
        return self._root is not None

    def draw(self, n: int, label: str) -> bytes:
        """``n`` bytes for the purpose that ``label`` names: study, round, attempt and what for."""
        if self._root is None:
            return secrets.token_bytes(n)
        return expand_bytes(derive(self._root, label), Usage.SEEDED, n)
