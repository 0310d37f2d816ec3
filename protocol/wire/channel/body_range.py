"""A part of an encrypted body, opened without the rest of it (docs/protocol.md 3).

Chunks of a body are sealed one by one, so whoever has the content key opens those that hold what is wanted. That the
body as a whole is what its sender committed to was found when it came; here every chunk that is used is authentic and
in its place, under this key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.errors import BrokenSeal, ProtocolViolation
from protocol.wire.channel.sealing import CHUNK_BYTES, CONTENT_KEY_BYTES, TAG_BYTES, Octets, open_chunk
from protocol.wire.keys import require_length

Reader: TypeAlias = Callable[[int, int], Octets]
"""Bytes ``offset`` to ``offset + size`` of what is stored: fewer only where it ends."""

_SEALED_CHUNK: Final = CHUNK_BYTES + TAG_BYTES


class BodyRange:
    """Reads content of ``content_bytes`` bytes, of which ``read`` gives the encrypted form.

    Raises: MalformedMessage if the key is not 32 bytes
    """

    def __init__(self, content_key: bytes, content_bytes: int, read: Reader) -> None:
        self._cipher = AESGCM(require_length("a content key", content_key, CONTENT_KEY_BYTES))
        self._content_bytes = content_bytes
        self._last = max(0, -(-content_bytes // CHUNK_BYTES) - 1)
        self._read = read

    def bytes_at(self, start: int, stop: int) -> memoryview:
        """Content from ``start`` to ``stop``.

        Raises: BrokenSeal, when what is stored was altered or is cut off; ProtocolViolation, for a part that is not
                there
        """
        if not 0 <= start <= stop <= self._content_bytes:
            raise ProtocolViolation(f"content of {self._content_bytes} bytes has no bytes {start} to {stop}")
        first = min(start // CHUNK_BYTES, self._last)
        end = max(first + 1, -(-stop // CHUNK_BYTES))
        held = memoryview(self._read(first * _SEALED_CHUNK, (end - first) * _SEALED_CHUNK))
        opened = []
        for place in range(first, end):
            chunk = held[(place - first) * _SEALED_CHUNK :][:_SEALED_CHUNK]
            if len(chunk) < TAG_BYTES:
                raise BrokenSeal(f"the stored body ends before its chunk {place}; check the disk or the storage")
            opened.append(open_chunk(self._cipher, place, place == self._last, chunk))
        found = memoryview(opened[0] if len(opened) == 1 else b"".join(opened))
        wanted = found[start - first * CHUNK_BYTES : stop - first * CHUNK_BYTES]
        if len(wanted) != stop - start:
            raise BrokenSeal(f"the stored body ends before byte {stop} of its content; check the disk or the storage")
        return wanted
