"""Shares as vectors on this server's disk: read chunk by chunk, in the study's ring (docs/protocol.md 3, 24)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.arithmetic.kernels import NUMBA
from protocol.arithmetic.packing import element_bytes, unpacked
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.parameters import WORD_BITS, RingBits


class Scratch:
    """Buffers that all sources of one pass take turns with: what a source returns holds until the next call."""

    def __init__(self) -> None:
        self._elements = np.empty(0, dtype=np.uint64)
        self._packed = bytearray()

    def take(self, size: int) -> Ring:
        """So many elements."""
        if self._elements.size < size:
            self._elements = np.empty(size, dtype=np.uint64)
        return self._elements[:size]

    def packed(self, size: int) -> memoryview:
        """So many bytes."""
        if len(self._packed) < size:
            self._packed = bytearray(size)
        return memoryview(self._packed)[:size]


@dataclass(frozen=True)
class StoredVector:
    """One site's share of ``length`` elements in a file: never the whole vector in memory, nor the file mapped."""

    path: Path
    site: str
    length: int
    bits: RingBits

    def require_whole(self) -> None:
        """Raises: ProtocolViolation"""
        found, needed = self.path.stat().st_size, element_bytes(self.bits) * self.length
        if found != needed:
            raise ProtocolViolation(
                f"the stored share of {self.site!r} has {found} bytes, expected {needed}; check the disk"
            )

    def elements(self, start: int, stop: int, scratch: Scratch) -> Ring:
        """Elements ``start`` to ``stop``, until the scratch is used again. Raises: ProtocolViolation"""
        out = scratch.take(stop - start)
        if self.bits == WORD_BITS:
            self._read(out.data.cast("B"), start)
            return out
        raw = scratch.packed(element_bytes(self.bits) * out.size)
        self._read(raw, start)
        return unpacked(raw, out.size, self.bits, NUMBA, out)

    def _read(self, into: memoryview, start: int) -> None:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(element_bytes(self.bits) * start)
                taken = file.readinto(into)
        except FileNotFoundError:
            raise ProtocolViolation(
                f"the share of {self.site!r} has been deleted meanwhile; its round is over"
            ) from None
        if taken != into.nbytes:
            stop = start + into.nbytes // element_bytes(self.bits)
            raise ProtocolViolation(f"the stored share of {self.site!r} ends before element {stop}")
