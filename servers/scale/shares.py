"""One side's shares in a cluster's storage, encrypted as they came; its workers do the passes (docs/protocol.md 18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation, ShareAltered
from protocol.messages.control import ShareKind
from protocol.parameters import StudyParameters
from protocol.sharing import ChunkSource
from servers.failpoints import Point
from servers.scale.passes import Shards
from servers.scale.ranges import Bound, StoredShare
from servers.store.chunk_tags import ENCRYPTED, Scratch
from servers.store.files import Draft, ShareFiles, TaggedDraft
from servers.store.records import ContributionRecord, RoundRecord
from servers.store.shares import Shares
from servers.store.sql import SqlStore
from servers.store.upload_parts import ShareInParts

P = ParamSpec("P")
T = TypeVar("T")


class EncryptedDraft(TaggedDraft):
    """A share's encrypted body on its way to the storage; its content is only checked."""

    def __init__(self, draft: Draft, shards: Shards) -> None:
        super().__init__(draft, ENCRYPTED)
        self._shards = shards

    def write(self, piece: bytes | memoryview) -> None:
        """Let opened content go."""

    def write_received(self, piece: bytes | memoryview) -> None:
        super().write(piece)

    def keep(self, name: str, content_key: bytes) -> bytes | None:
        wrapped_key = self._shards.wrap(content_key, name)
        self._draft.keep_in(self._shards.storage, name)
        return wrapped_key


class ClusterShares(Shares):
    """Ciphertexts, and shares that came before there was a cluster, lie in this server's files all the same."""

    def __init__(self, store: SqlStore, files: ShareFiles, shards: Shards) -> None:
        super().__init__(store, files)
        self._shards = shards

    @contextmanager
    def draft(self, kind: ShareKind, *midway: Point) -> Iterator[TaggedDraft]:
        if kind is ShareKind.CIPHERTEXT:
            with super().draft(kind, *midway) as in_clear:
                yield in_clear
            return
        with self._files.draft(*midway) as draft:
            yield EncryptedDraft(draft, self._shards)

    def keep_upload(self, share: ShareInParts, kind: ShareKind, name: str, tags: bytes) -> tuple[bytes | None, bytes]:
        if kind is ShareKind.CIPHERTEXT:
            return super().keep_upload(share, kind, name, tags)
        with self.draft(kind) as draft:
            for chunk in share.encrypted_body():
                draft.write_received(chunk)
            return draft.keep(name, share.content_key), draft.tags()

    def sketches(self, record: RoundRecord, parameters: StudyParameters) -> Callable[[], list[Ring]]:
        shares = self._stored(record, record.challenged.sites)
        return partial(self._by_site(record, self._shards.sketches), _bound(record), shares, parameters)

    def masked_sum(self, record: RoundRecord, length: int) -> ChunkSource:
        shares = self._stored(record, record.chosen.message.sites)
        return self._by_site(record, self._shards.masked_sum(_bound(record), shares, record.mask, length).elements)

    def summands(self, record: RoundRecord, length: int) -> Sequence[ChunkSource]:
        shares = self._stored(record, record.chosen.message.sites)
        return [self._by_site(record, self._shards.sum(_bound(record), shares, length))]

    def source(self, one: ContributionRecord, scratch: Scratch | None = None) -> ChunkSource:
        return super().source(one, scratch) if one.wrapped_key is None else self._shards.source(_stored_share(one))

    def forget(self, study: str) -> None:
        self._shards.forget(study)

    def sweep(self) -> None:
        super().sweep()
        self._shards.sweep(self._store.files())

    def strays(self, named: set[str]) -> set[str]:
        return {*self._shards.strays(named)}

    def close(self) -> None:
        self._shards.close()

    def _stored(self, record: RoundRecord, sites: Sequence[str]) -> list[StoredShare]:
        return [_stored_share(one) for one in self._held(record, sites)]

    def _by_site(self, record: RoundRecord, work: Callable[P, T]) -> Callable[P, T]:
        """``work`` that workers do, to whom a share has a file's name alone: its error names the site."""

        def named(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return work(*args, **kwargs)
            except ShareAltered as error:
                for one in self._store.contributions(record.key):
                    if one.file is not None and error.is_of(one.file):
                        raise ShareAltered(error.detail.replace(one.file, one.site)) from None
                raise

        return named


def _stored_share(one: ContributionRecord) -> StoredShare:
    if one.file is None or one.wrapped_key is None:
        raise ProtocolViolation(
            f"the share of {one.site!r} has been deleted, or came before the server had a cluster; its round is over"
        )
    return StoredShare(one.file, one.header.share_kind, one.header.length, one.wrapped_key, one.chunk_tags)


def _bound(record: RoundRecord) -> Bound:
    release = "" if record.release_set is None else record.release_set.message.digest()
    challenge = record.challenged.transcript.message.challenge
    return Bound(record.key.study, record.key.round, record.key.attempt, challenge, release)
