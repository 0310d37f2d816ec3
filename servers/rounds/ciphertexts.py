"""Ciphertexts as side A gets and adds them: chunk by chunk, never a whole vector in memory (docs/protocol.md 11)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from protocol.ckks.ciphertext import (
    BodyHeader,
    ChunkReader,
    CkksParameters,
    Kind,
    body_bytes,
    chunk_bytes,
    chunk_count,
    chunk_offset,
)
from protocol.errors import ProtocolViolation, UnknownResource
from protocol.messages.control import Announcement
from servers.ckks.process import CkksProcess
from servers.points import Point
from servers.server import Server
from servers.store.files.chunk_tags import ChunkTags
from servers.store.files.stored_vector import tags_of
from servers.store.study_records import RoundRecord

_CHECKED_TOGETHER: Final = 64


class ContributionCheck:
    """Keeps of a contribution only what the worker parses. Blocks: for threads, never for the event loop.

    ``keep`` gets every piece; the first one starts the worker.

    Raises: MalformedMessage, on another context, key or length, and on what is no ciphertext; ConfigurationError
    """

    def __init__(
        self, process: CkksProcess, key_id: bytes, values: int, keep: Callable[[bytes], None] = lambda piece: None
    ) -> None:
        self._process = process
        self._expected = (key_id, values)
        self._keep = keep

    @cached_property
    def _reader(self) -> ChunkReader:
        header = BodyHeader(Kind.CONTRIBUTION, self._process.fingerprint(), *self._expected)
        return ChunkReader(self._process.parameters, header)

    def write(self, piece: bytes) -> None:
        """Take the next bytes."""
        chunks = self._reader.feed(piece)
        for start in range(0, len(chunks), _CHECKED_TOGETHER):
            self._process.check(chunks[start : start + _CHECKED_TOGETHER])
        self._keep(piece)

    def finish(self) -> None:
        """Say that nothing more comes."""
        self._reader.finish()


def stored_chunks(path: Path, tags: ChunkTags, parameters: CkksParameters, values: int) -> Callable[[int], bytes]:
    """Chunk access to a stored contribution, compared with what was checked when it came.

    Raises: ShareAltered from the result
    """
    size = chunk_bytes(parameters, Kind.CONTRIBUTION)

    def read(index: int) -> bytes:
        at = chunk_offset(parameters, Kind.CONTRIBUTION, index)
        with tags.reading(at), path.open("rb", buffering=0) as file:
            file.seek(at)
            chunk = file.read(size)
        if index >= chunk_count(parameters, values) or len(chunk) != size:
            raise tags.altered(at)
        tags.require(at, chunk)
        return chunk

    return read


def summed_body(process: CkksProcess, header: BodyHeader, sources: Sequence[Callable[[int], bytes]]) -> Iterator[bytes]:
    """The body of the sum, which every site of the cohort decrypts; ``header`` is of the kind SUM.

    Reveals:  nothing to whoever has no key
    Raises:   as :meth:`CkksProcess.add`
    """
    yield header.to_bytes()
    for index in range(chunk_count(process.parameters, header.values)):
        yield process.add([source(index) for source in sources])


def write_sum(server: Server, record: RoundRecord, values: int, name: str) -> str:
    """Add the released sites' ciphertexts into the file ``name``, of so many ``values``; its SHA-256. Blocks.

    Raises: ProtocolViolation, Unavailable, ConfigurationError, StorageFull
    """
    process, parameters = server.ckks, server.ckks.parameters
    header = BodyHeader(Kind.SUM, process.fingerprint(), key_id_of(record.announcement.message), values)
    held = {one.site: one for one in server.store.contributions(record.key)}
    sources = list[Callable[[int], bytes]]()
    for site in record.chosen.message.sites:
        one = held.get(site)
        if one is None or one.file is None:
            raise UnknownResource(f"the contribution of {site!r} is no longer kept")
        sources.append(stored_chunks(server.files.path(one.file), tags_of(one), parameters, values))
    server.files.require_room(body_bytes(parameters, Kind.SUM, values))
    taken = hashlib.sha256()
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        for piece in summed_body(process, header, sources):
            taken.update(piece)
            draft.write(piece)
        draft.keep(name)
    return taken.hexdigest()


def key_id_of(announcement: Announcement) -> bytes:
    """The key that the round's ciphertexts are under. Raises: ProtocolViolation, in a round of shares"""
    if announcement.ckks_key_id is None:
        raise ProtocolViolation(f"round {announcement.round} is one of shares; it has no bodies of ciphertexts")
    return bytes.fromhex(announcement.ckks_key_id)
