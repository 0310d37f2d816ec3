"""The requester's queries, as shares (docs/protocol.md 6, 8).

    header    which challenge; the sites asked about, in order; what follows
    content   seed: 32 bytes whose stream is the share | vector: the queries less that stream, 8 bytes per element

All targets' queries, one after the other, are shared at once; which server gets the seed alternates by round.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.arithmetic.prg import SEED_BYTES, Usage, expand
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, from_bytes, to_bytes
from protocol.bodies import sealed
from protocol.errors import MalformedMessage, TranscriptMismatch
from protocol.sharing import Side, seed_side
from protocol.wire.keys import SealingPublicKey
from protocol.wire.messages import QueryHeader, ShareKind


@dataclass(frozen=True)
class Queries:
    """One server's part of an attempt's queries: ``length`` elements for each target."""

    transcript_digest: str
    side: Side
    targets: tuple[str, ...]
    length: int

    @property
    def most_bytes(self) -> int:
        """The longest body."""
        return sealed.most_body_bytes(ELEMENT_BYTES * self.length * len(self.targets))

    def header(self, round_number: int) -> QueryHeader:
        """The public header."""
        seeded = seed_side(round_number) is self.side
        return QueryHeader(
            transcript_digest=self.transcript_digest,
            side=self.side,
            share_kind=ShareKind.SEED if seeded else ShareKind.VECTOR,
            targets=self.targets,
            length=self.length,
        )

    def require(self, raw: bytes) -> QueryHeader:
        """The header that came, when it is of these queries; either kind will do.

        Raises: TranscriptMismatch, MalformedMessage
        """
        header = QueryHeader.parse(raw)
        if header.transcript_digest != self.transcript_digest:
            raise TranscriptMismatch("the queries are made for another challenge than this server signed")
        if header.side is not self.side:
            raise MalformedMessage(
                f"the queries are for side {header.side.value!r}, this server is {self.side.value!r}"
            )
        if header.share_kind not in (ShareKind.SEED, ShareKind.VECTOR):
            raise MalformedMessage(f"queries come as a seed or a vector, found {header.share_kind.value!r}")
        if header.targets != self.targets or header.length != self.length:
            raise MalformedMessage(
                f"queries must name {', '.join(self.targets)} in this order, each of length {self.length}; found "
                f"{', '.join(header.targets)} of length {header.length}"
            )
        return header

    def content_bytes(self, header: QueryHeader) -> int:
        """Return the content bytes of a body with this header."""
        vector = header.share_kind is ShareKind.VECTOR
        return ELEMENT_BYTES * header.length * len(header.targets) if vector else SEED_BYTES


def query_content(header: QueryHeader, queries: Ring, seed: bytes) -> bytes:
    """One server's share of all queries. Requires: ``seed`` fresh and secret"""
    if header.share_kind is ShareKind.SEED:
        return seed
    return to_bytes(queries - expand(seed, Usage.QUERY, queries.size))


def seal_query(header: QueryHeader, share: bytes, recipient: SealingPublicKey, secret: bytes) -> bytes:
    """The body. Requires: ``secret`` as :func:`seal_body`"""
    return sealed.seal_body(header, [share], recipient, secret).whole()


def read_query(header: QueryHeader, share: bytes) -> dict[str, Ring]:
    """Target -> its query share. Shapes: -> uint64[length] each"""
    k, count = header.length, len(header.targets)
    seeded = header.share_kind is ShareKind.SEED
    whole = expand(share, Usage.QUERY, k * count) if seeded else from_bytes(share, k * count)
    return {target: whole[i * k : (i + 1) * k] for i, target in enumerate(header.targets)}
