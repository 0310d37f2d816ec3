"""One side's shares of a round, on this server's disk, and the passes over them (docs/protocol.md 3, 5, 9).

A server with a cluster has ``servers/scale/shares.py`` instead: encrypted shares in a storage, passes by workers. It is
chosen once, at the start; whoever takes in, sketches or sums shares does not ask which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from protocol.arithmetic.ring import Ring, Usage, expand_into
from protocol.errors import ProtocolViolation
from protocol.messages.control import ShareKind
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import StudyParameters
from protocol.release import masked_sum_of
from protocol.sharing import ChunkSource
from servers.failpoints import Point
from servers.store.chunk_tags import Scratch, StoredVector, layout_of, read_whole, tags_of
from servers.store.files import ShareFiles, TaggedDraft
from servers.store.records import ContributionRecord, RoundRecord
from servers.store.sql import SqlStore
from servers.store.upload_parts import ShareInParts

CHUNK_ELEMENTS: Final = 2**16
"""Summed at once: small enough for the processor's cache, large enough that opening a share's file costs little."""


class Shares:
    """Shares in clear, in this server's files. What reads them blocks: for threads."""

    def __init__(self, store: SqlStore, files: ShareFiles) -> None:
        self._store = store
        self._files = files

    # --- as they come ---

    @contextmanager
    def draft(self, kind: ShareKind, *midway: Point) -> Iterator[TaggedDraft]:
        """A share on its way, in a file that no row names yet."""
        with self._files.draft(*midway) as draft:
            yield TaggedDraft(draft, layout_of(kind))

    def keep_upload(self, share: ShareInParts, kind: ShareKind, name: str, tags: bytes) -> tuple[bytes | None, bytes]:
        """Keep a finished upload of this kind as a share under ``name``. -> its wrapped key, if any, and its tags"""
        self._files.also(share.content, name)
        return None, tags

    # --- passes ---

    def sketches(self, record: RoundRecord, parameters: StudyParameters) -> Callable[[], list[Ring]]:
        """Return the function that sketches every agreed share, in order."""
        challenged = record.challenged
        return partial(sketch_shares, challenged.challenge, self._sources(record, challenged.sites), parameters)

    def masked_sum(self, record: RoundRecord, length: int) -> ChunkSource:
        """The sum of the released sites' shares minus PRG of the round's mask."""
        sources, mask = self.summands(record, length), record.mask
        return lambda start, stop: masked_sum_of(sources, mask, start, stop, CHUNK_ELEMENTS)

    def summands(self, record: RoundRecord, length: int) -> Sequence[ChunkSource]:
        """Vectors of ``length`` elements that add up to the released sites' sum."""
        return self._sources(record, record.chosen.message.sites)

    def source(self, one: ContributionRecord, scratch: Scratch | None = None) -> ChunkSource:
        """Chunk access to one site's share: never the whole vector in memory, nor the file mapped.

        Raises: ShareAltered, and so does the source; ProtocolViolation
        """
        if one.file is None:
            raise ProtocolViolation(f"the share of {one.site!r} has been deleted; its round is over")
        path, tags, scratch = self._files.path(one.file), tags_of(one), scratch or Scratch()
        if one.header.share_kind is ShareKind.SEED:
            seed = read_whole(path, tags)
            return lambda start, stop: _expanded(seed, start, scratch.take(stop - start))
        stored = StoredVector(path, one.header.length, one.header.share_kind.ring_bits, tags)
        stored.require_whole()
        return lambda start, stop: stored.elements(start, stop, scratch)

    def require_unaltered(self, record: RoundRecord) -> None:
        """Compare all that is stored of the released sites with what was received, before a byte of their sum leaves.

        In a round that side B masks, B has released by the time its sum is read, and nothing ends the round otherwise.
        Shares in a cluster's storage are compared by the workers alone. Raises: ShareAltered
        """
        for one in self._held(record, record.chosen.message.sites):
            if one.file is None or one.wrapped_key is not None:
                continue
            tags = tags_of(one)
            with tags.reading(), self._files.path(one.file).open("rb", buffering=0) as file:
                tags.require_file(file)

    def _sources(self, record: RoundRecord, sites: Sequence[str]) -> list[ChunkSource]:
        """Sources for one thread, which uses each piece at once."""
        scratch = Scratch()
        return [self.source(one, scratch) for one in self._held(record, sites)]

    def _held(self, record: RoundRecord, sites: Sequence[str]) -> list[ContributionRecord]:
        held = {one.site: one for one in self._store.contributions(record.key)}
        return [held[site] for site in sites]

    # --- what is over ---

    def forget(self, study: str) -> None:
        """Give up passes over a study's shares, and what they wrote."""

    def sweep(self) -> None:
        """At start: delete what a crash left behind, files that no row names."""
        self._files.sweep(self._store.files())

    def strays(self, named: set[str]) -> set[str]:
        """Files beside this server's own that neither a row nor a pass under way names."""
        return set()

    def close(self) -> None:
        """Give up what is under way."""


def _expanded(seed: bytes, start: int, out: Ring) -> Ring:
    expand_into(seed, Usage.SHARE, out, start=start)
    return out
