"""CKKS contributions as they arrive, and their sum, chunk by chunk: never a whole vector in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from protocol.ckks.ciphertext import BodyHeader, ChunkReader, Kind, chunk_bytes, chunk_count, chunk_offset
from protocol.ckks.parameters import CkksParameters
from protocol.errors import ProtocolViolation
from servers.ckks.process import CkksProcess

ChunkAt: TypeAlias = Callable[[int], bytes]
"""The chunk of one stored contribution at a place."""

_CHECKED_TOGETHER: Final = 64


class ContributionCheck:
    """Looks at a contribution's plaintext piece by piece; every chunk of it is parsed in the worker process.

    Raises: MalformedMessage, on another context, key or length, and on what is no ciphertext
    """

    def __init__(self, process: CkksProcess, parameters: CkksParameters, expected: BodyHeader) -> None:
        self._process = process
        self._reader = ChunkReader(parameters, expected)
        self._waiting: list[bytes] = []

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        self._waiting += self._reader.feed(data)
        while len(self._waiting) >= _CHECKED_TOGETHER:
            batch, self._waiting = self._waiting[:_CHECKED_TOGETHER], self._waiting[_CHECKED_TOGETHER:]
            self._process.check(batch)

    def finish(self) -> None:
        """Say that nothing more comes."""
        self._reader.finish()
        self._process.check(self._waiting)
        self._waiting = []


def stored_chunks(path: Path, site: str, parameters: CkksParameters, values: int) -> ChunkAt:
    """Chunk access to a stored contribution that was checked when it came.

    Raises: ProtocolViolation from the result, when the file ends early
    """
    size = chunk_bytes(parameters, Kind.CONTRIBUTION)

    def read(index: int) -> bytes:
        with path.open("rb", buffering=0) as file:
            file.seek(chunk_offset(parameters, Kind.CONTRIBUTION, index))
            chunk = file.read(size)
        if index >= chunk_count(parameters, values) or len(chunk) != size:
            raise ProtocolViolation(f"the stored contribution of {site!r} has no chunk {index}; check the disk")
        return chunk

    return read


def summed_body(
    process: CkksProcess, parameters: CkksParameters, header: BodyHeader, sources: Sequence[ChunkAt]
) -> Iterator[bytes]:
    """The body of the sum, which every site of the cohort decrypts; ``header`` is of the kind SUM.

    Reveals:  nothing to whoever has no key
    Raises:   as :meth:`CkksProcess.add`
    """
    yield header.to_bytes()
    for index in range(chunk_count(parameters, header.values)):
        yield process.add([source(index) for source in sources])
