"""The key that wraps every secret that travels in a task's arguments (docs/protocol.md 18).

What a cluster schedules it also keeps: arguments of tasks lie in its tables and on its disks. So content keys, seeds
and masks go in wrapped, under a key that server and workers read from a file of their own, and what comes back is
under a pad that both derive from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from host.files import read_secret
from protocol.arithmetic.ring import SEED_BYTES, Ring, Usage, derive, expand
from protocol.errors import BrokenSeal, ConfigurationError

_ONCE: Final = bytes(12)
"""The nonce: every key derived here wraps one secret."""


class WrappingKey:
    """``what`` names one secret for ever, so the same call gives the same bytes. It cannot be put into a task."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def wrap(self, secret: bytes, what: str) -> bytes:
        return AESGCM(derive(self._key, f"wrapped {what}")).encrypt(_ONCE, secret, None)

    def unwrap(self, wrapped: bytes, what: str) -> bytes:
        """Raises: BrokenSeal, under another key or another name"""
        try:
            return AESGCM(derive(self._key, f"wrapped {what}")).decrypt(_ONCE, wrapped, None)
        except InvalidTag:
            raise BrokenSeal(
                "a wrapped key does not open here: this machine's wrapping key is another than the server's; put the "
                "same file on every machine of the cluster"
            ) from None

    def seed(self, what: str) -> bytes:
        """A 32-byte seed that whoever has this key derives again."""
        return derive(self._key, f"seed {what}")

    def pad(self, what: str, elements: int) -> Ring:
        """Shapes: -> uint64[elements]"""
        return expand(self.seed(what), Usage.OUTPUT_MASK, elements)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a wrapping key never leaves its process")


def read_wrapping_key(path: Path) -> WrappingKey:
    """Read the key from a file that its owner alone may read. Raises: ConfigurationError"""
    text = read_secret(path).strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != SEED_BYTES:
        raise ConfigurationError(
            f"{path}: a wrapping key is {SEED_BYTES} random bytes in hexadecimal: openssl rand -hex 32 > {path}"
        )
    return WrappingKey(key)
