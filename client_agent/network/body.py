"""The body of a request to a server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from protocol.channel.signing import DigestField

PIECE_BYTES: Final = 2**18
_ENCLOSED_OF_FILES: Final = 2**12
_ENCLOSED_WHOLE_BYTES: Final = 2**20
"""A server takes no envelope that is longer than a control message can be; the queries of 300 sites are."""


@dataclass(frozen=True)
class Body:
    """A request's body: a few bytes, or a file of which the digest is known."""

    data: bytes | Path
    digest: bytes
    length: int
    after_piece: Callable[[], None] = field(default=lambda: None, repr=False)
    digest_field: DigestField = DigestField.CONTENT
    start: int = 0
    """Where in a file it begins; of ``digest`` is then the whole file."""
    is_sealed: bool = False

    @classmethod
    def of(cls, data: bytes) -> Body:
        return cls(data, hashlib.sha256(data).digest(), len(data))

    @classmethod
    def sealed(cls, data: bytes) -> Body:
        """Bytes that nobody on the way can read anyway: what is long of them need not be enclosed."""
        return replace(cls.of(data), is_sealed=True)

    @classmethod
    def file(cls, path: Path, digest: bytes) -> Body:
        """A file and its SHA-256."""
        return cls(path, digest, path.stat().st_size)

    @classmethod
    def contribution(cls, path: Path, digest: bytes, after_piece: Callable[[], None] = lambda: None) -> Body:
        """A sealed share and its message digest; ``after_piece`` is called whenever a piece is on its way."""
        return cls(path, digest, path.stat().st_size, after_piece, DigestField.SEALED)

    def part(self, start: int, size: int) -> Body:
        """``size`` bytes of a file from ``start`` on, or what is left of them, under the digest of the whole."""
        assert isinstance(self.data, Path), "only a file is sent in parts"
        return replace(self, start=start, length=min(size, self.length - start))

    def beginning(self) -> bytes:
        """Return the part that goes into the envelope: all of a few bytes; of a file, or of many that are sealed, what
        may hold a public header.
        """
        if isinstance(self.data, bytes):
            follows = self.is_sealed and self.length > _ENCLOSED_WHOLE_BYTES
            return self.data[:_ENCLOSED_OF_FILES] if follows else self.data
        if self.start:
            return b""
        with self.data.open("rb") as file:
            return file.read(min(_ENCLOSED_OF_FILES, self.length))

    def pieces(self, after: int = 0) -> Iterator[bytes]:
        """Yield what follows the first ``after`` bytes."""
        if isinstance(self.data, bytes):
            for start in range(after, len(self.data), PIECE_BYTES):
                yield self.data[start : start + PIECE_BYTES]
                self.after_piece()
            return
        left = self.length - after
        with self.data.open("rb") as file:
            file.seek(self.start + after)
            while left and (piece := file.read(min(PIECE_BYTES, left))):
                left -= len(piece)
                yield piece
                self.after_piece()
