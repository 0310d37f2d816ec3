"""Sealed bodies: a public header, and behind its seal content of a known length (docs/protocol.md 3).

A site's contribution: one server's part of its vector, sealed to it (docs/protocol.md 3, 11).

    header    which round, attempt, site and side; the commitments to all parts; what follows
    content   seed: 32 bytes whose stream is the share | vector: the share's elements, 8 bytes each, or 6 of a vector48
              | ciphertext: the whole update under the sites' key, for side A alone

Both parts' headers name both commitments, which are known once both contents are encrypted: so the content is
encrypted first, and the head put in front of it.

The requester's queries, as shares (docs/protocol.md 6, 8).

    header    which challenge; the sites asked about, in order; what follows
    content   seed: 32 bytes whose stream is the share | vector: the queries less that stream, 8 bytes per element

All targets' queries, one after the other, are shared at once; which server gets the seed alternates by round.

One server's shares of what an attempt opens, sealed to the requester (docs/protocol.md 6, 8).

    header    which challenge and side; the sites checked, in the agreed set's order; what is opened about them
    content   every site's range shares, then every site's values; 8 bytes each

One server's masked sum on its way to the other (docs/protocol.md 9).

    header    which release, how many elements
    content   the masked vector, 8 bytes per element, or 6 of a vector48

One server's part of a released sum, sealed to one site (docs/protocol.md 9, 11).

    header    which release, side and recipient; what follows
    content   seed: the mask's 32 bytes | vector: the masked sum, 8 bytes per element, or 6 of a vector48 |
              ciphertext: the sum under the sites' key, from side A alone

To a site that asks in a session (protocol/channel/session.py) a short output goes whole under that session's keys,
and has no seal of its own: header and content framed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Protocol, TypeVar

import numpy as np

from protocol.arithmetic.fixed_point import element_bytes, unpacked
from protocol.arithmetic.ring import ELEMENT_BYTES, SEED_BYTES, Ring, Usage, expand, from_bytes, to_bytes
from protocol.channel.commitment import COMMITMENT_BYTES, commitment, message_digest
from protocol.channel.keys import SealingKey, SealingPublicKey
from protocol.channel.message import Message, pack_frame, unpack_frame
from protocol.channel.sealing import (
    CONTENT_KEY_BYTES,
    MAX_HEADER_BYTES,
    SALT_BYTES,
    Octets,
    SealedMessage,
    SealedReader,
    encrypt_body,
    seal_message,
    sealed_head,
    sealed_head_length,
    sealed_length,
    sealed_message_length,
)
from protocol.ckks.ciphertext import CkksParameters, Kind, body_bytes
from protocol.errors import (
    AnnouncementMismatch,
    MalformedMessage,
    MoietyError,
    NotListed,
    TranscriptMismatch,
    WrongRound,
)
from protocol.messages.control import (
    NO_COMMITMENT,
    Announcement,
    ContributionHeader,
    OpeningHeader,
    OutputHeader,
    QueryHeader,
    Roster,
    ShareKind,
)
from protocol.messages.peer import MaskedSumHeader
from protocol.mpc.measurement import OpeningShare, value_count
from protocol.parameters import RANGE_PROJECTIONS, WORD_BITS, RingBits
from protocol.release import masking_side
from protocol.sharing import Side, round_seed_side, vector_side

H = TypeVar("H", bound=Message)

SECRET_BYTES: Final = CONTENT_KEY_BYTES + SALT_BYTES
_NO_COMMITMENT: Final = bytes(COMMITMENT_BYTES)


class Expected(Protocol[H]):
    """The expected form of a body: its header, and the bytes of content behind it."""

    def require(self, raw: bytes) -> H:
        """The header that came. Raises: what says how it differs"""
        ...

    def content_bytes(self, header: H) -> int: ...


def seal_body(header: Message, content: Iterable[Octets], recipient: SealingPublicKey, secret: bytes) -> SealedMessage:
    """Seal ``content`` under ``header``, piece by piece.

    Requires: ``secret`` holds a content key and a salt, 64 fresh random bytes used for this message alone
    """
    content_key, salt = secret[:CONTENT_KEY_BYTES], secret[CONTENT_KEY_BYTES:]
    return seal_message(header.canonical(), content, recipient, content_key, salt)


def most_body_bytes(content_bytes: int) -> int:
    """The longest sealed message with so much content, whatever its header."""
    return sealed_message_length(MAX_HEADER_BYTES, content_bytes)


def open_body(reader: SealedReader, pieces: Iterable[Octets]) -> Iterator[bytes]:
    """The content, piece by piece; the last piece once the end is authentic. Raises: as ``SealedReader``"""
    for data in pieces:
        yield from reader.feed(data)
    yield reader.finish()


def reader_of(expected: Message, key: SealingKey, other: MoietyError) -> SealedReader:
    """Reader of the sealed body with exactly this header. Raises: ``other``, under another header; as SealedReader"""

    def accept(raw: bytes) -> None:
        if type(expected).parse(raw) != expected:
            raise other

    return SealedReader(key, accept)


class ElementReader:
    """A vector's bytes in pieces of any size, handed on as whole elements, each piece with its place.

    ``longer`` is said when more than ``length`` elements come; ``shorter`` when fewer do: ``{}`` is how many did. The
    ring of ``bits`` says how many bytes an element has.

    Raises: MalformedMessage
    """

    def __init__(self, length: int, longer: str, shorter: str, bits: RingBits = WORD_BITS) -> None:
        self._length = length
        self._bits = bits
        self._longer = longer
        self._shorter = shorter
        self._held = b""
        self._done = 0

    def feed(self, data: Octets) -> tuple[int, Ring]:
        """The next elements and where they begin; the array is read-only and may be empty."""
        view, start = memoryview(self._held + data if self._held else data), self._done
        size = element_bytes(self._bits)
        count = len(view) // size
        if start + count > self._length:
            raise MalformedMessage(self._longer)
        self._held = bytes(view[count * size :])
        self._done += count
        return start, unpacked(view[: count * size], count, self._bits)

    def finish(self) -> None:
        """Say that nothing more comes."""
        if self._held or self._done != self._length:
            raise MalformedMessage(self._shorter.format(self._done))


# --- contribution -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One server's part of one site's contribution; ``length`` counts ring elements, or an update's values."""

    announcement: Announcement
    attempt: int
    site: str
    side: Side
    kind: ShareKind
    length: int

    def header(self, committed: Mapping[Side, bytes]) -> ContributionHeader:
        """The public header; a side without a commitment gets nothing."""
        return ContributionHeader(
            study_digest=self.announcement.study_digest,
            round=self.announcement.round,
            attempt=self.attempt,
            site=self.site,
            side=self.side,
            announcement_digest=self.announcement.digest(),
            commitment_a=committed.get(Side.A, _NO_COMMITMENT).hex(),
            commitment_b=committed.get(Side.B, _NO_COMMITMENT).hex(),
            share_kind=self.kind,
            length=self.length,
        )

    def require(self, raw: bytes) -> ContributionHeader:
        """The header that came, when it is this part's; looked at before anything is decrypted.

        Raises: NotListed, WrongRound, AnnouncementMismatch, MalformedMessage
        """
        header, of = ContributionHeader.parse(raw), self.announcement
        if header.site != self.site:
            raise NotListed(f"the share's header names {header.site!r}, the request is signed by {self.site!r}")
        if (header.round, header.attempt) != (of.round, self.attempt):
            raise WrongRound(
                f"the share is made for round {header.round}, attempt {header.attempt}; current are "
                f"{of.round} and {self.attempt}"
            )
        if header.study_digest != of.study_digest or header.announcement_digest != of.digest():
            raise AnnouncementMismatch("the share is bound to another study or announcement than this server holds")
        if header.side is not self.side:
            raise MalformedMessage(f"the share is for side {header.side.value!r}, this server is {self.side.value!r}")
        if header.length != self.length or header.share_kind is not self.kind:
            raise MalformedMessage(
                f"{self.site!r} sends this server a {self.kind.value} of length {self.length}, found a "
                f"{header.share_kind.value} of length {header.length}; check the study's parameters"
            )
        if self.kind is ShareKind.CIPHERTEXT and header.commitment_b != NO_COMMITMENT:
            raise MalformedMessage("an encrypted update goes to side A alone: commitment_b must be all zeros")
        return header

    def content_bytes(self, header: ContributionHeader) -> int:
        """Return the content bytes of a body with this header."""
        return content_bytes(header.share_kind, header.length)


def content_bytes(kind: ShareKind, length: int, of: Kind = Kind.CONTRIBUTION) -> int:
    """Return the content bytes of a part, or ``of`` a sum; ``length`` as in its header."""
    if kind is ShareKind.CIPHERTEXT:
        return body_bytes(CkksParameters(), of, length)
    return SEED_BYTES if kind is ShareKind.SEED else element_bytes(kind.ring_bits) * length


def share_parts(
    announcement: Announcement, attempt: int, site: str, roster: Roster, length: int, bits: RingBits = WORD_BITS
) -> dict[Side, Part]:
    """Both parts of a vector that travels as shares."""
    gets_vector = vector_side(roster.place(site))
    kinds = {gets_vector: ShareKind.vector_of(bits), gets_vector.other: ShareKind.SEED}
    return {side: Part(announcement, attempt, site, side, kinds[side], length) for side in Side}


def ciphertext_parts(announcement: Announcement, attempt: int, site: str, values: int) -> dict[Side, Part]:
    """The one part of an encrypted update."""
    return {Side.A: Part(announcement, attempt, site, Side.A, ShareKind.CIPHERTEXT, values)}


class PartSealing:
    """One part on its way behind its seal: the encrypted content first, then the head in front of it.

    Requires: ``content_key`` and ``salt`` are 32 fresh random bytes each, used for this part alone
    """

    def __init__(self, part: Part, recipient: SealingPublicKey, content_key: bytes, salt: bytes) -> None:
        self.part = part
        self._recipient = recipient
        self._content_key = content_key
        self._salt = salt
        self._body_hash = hashlib.sha256()

    @property
    def head_bytes(self) -> int:
        """Return the bytes of the head, whatever the commitments are."""
        return sealed_head_length(len(self.part.header({}).canonical()))

    def sealed_content(self, content: Iterable[Octets]) -> Iterator[Octets]:
        """The encrypted content, piece by piece; once, and to the end before anything else is asked."""
        for chunk in encrypt_body(self._content_key, content):
            self._body_hash.update(chunk)
            yield chunk

    def commitment(self) -> bytes:
        return commitment(self._salt, self._content_key, self._body_hash.digest())

    def head(self, committed: Mapping[Side, bytes]) -> tuple[bytes, bytes]:
        """Return the head, all before the encrypted content, and the digest of the whole message."""
        header = self.part.header(committed).canonical()
        head = sealed_head(header, self._recipient, self._content_key, self._salt)
        return head, message_digest(head, self._body_hash.digest())


# --- queries and openings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queries:
    """One server's part of an attempt's queries: ``length`` elements for each target."""

    transcript_digest: str
    side: Side
    targets: tuple[str, ...]
    length: int

    @property
    def most_bytes(self) -> int:
        return most_body_bytes(ELEMENT_BYTES * self.length * len(self.targets))

    def header(self, round_number: int) -> QueryHeader:
        seeded = round_seed_side(round_number) is self.side
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
        vector = header.share_kind is ShareKind.VECTOR
        return ELEMENT_BYTES * header.length * len(header.targets) if vector else SEED_BYTES


def query_content(header: QueryHeader, queries: Ring, seed: bytes) -> bytes:
    """One server's share of all queries. Requires: ``seed`` fresh and secret"""
    if header.share_kind is ShareKind.SEED:
        return seed
    return to_bytes(queries - expand(seed, Usage.QUERY, queries.size))


def read_query(header: QueryHeader, share: bytes) -> dict[str, Ring]:
    """Target -> its query share. Shapes: -> uint64[length] each"""
    k, count = header.length, len(header.targets)
    seeded = header.share_kind is ShareKind.SEED
    whole = expand(share, Usage.QUERY, k * count) if seeded else from_bytes(share, k * count)
    return {target: whole[i * k : (i + 1) * k] for i, target in enumerate(header.targets)}


def seal_opening(
    header: OpeningHeader, shares: Sequence[OpeningShare], recipient: SealingPublicKey, secret: bytes
) -> bytes:
    """The body, of the shares in the header's order. Requires: ``secret`` as :func:`seal_body`"""
    ranges, values = [to_bytes(s.range_shares) for s in shares], [to_bytes(s.values) for s in shares]
    return seal_body(header, ranges + values, recipient, secret).whole()


def most_opening_bytes(sites: int) -> int:
    """The longest body about so many sites: range checks, and at most one value a pair."""
    return most_body_bytes(ELEMENT_BYTES * sites * (RANGE_PROJECTIONS + sites))


def read_opening(body: bytes, expected: OpeningHeader, requester: str, key: SealingKey) -> tuple[OpeningShare, ...]:
    """The shares of exactly the expected opening, in the order of its sites.

    Raises: TranscriptMismatch, MalformedMessage, BrokenSeal
    """
    other = TranscriptMismatch(f"server {expected.side} opened other sites or another challenge than the round's")
    content = b"".join(open_body(reader_of(expected, key, other), [body]))
    checked = expected.checked
    counts = [value_count(expected.opens, place, site == requester) for place, site in enumerate(checked)]
    ranges = len(checked) * RANGE_PROJECTIONS
    length = ranges + sum(counts)
    if len(content) != length * ELEMENT_BYTES:
        raise MalformedMessage(
            f"server {expected.side}'s opening has {len(content)} bytes, expected {length * ELEMENT_BYTES}"
        )
    numbers = from_bytes(content, length)
    range_shares = numbers[:ranges].reshape(len(checked), RANGE_PROJECTIONS)
    values = np.split(numbers[ranges:], np.cumsum(counts)[:-1])
    return tuple(OpeningShare(*one) for one in zip(checked, range_shares, values, strict=True))


# --- masked sum -------------------------------------------------------------------------------------------------------


def masked_sum_bytes(header: MaskedSumHeader) -> int:
    return sealed_message_length(len(header.canonical()), element_bytes(header.share_kind.ring_bits) * header.length)


def most_masked_sum_bytes(length: int) -> int:
    return most_body_bytes(ELEMENT_BYTES * length)


def masked_sum_readers(expected: MaskedSumHeader, key: SealingKey) -> tuple[SealedReader, ElementReader]:
    """Readers of the peer's masked sum, sealed to this server: of its content, and of the elements in that.

    Raises: from the first AnnouncementMismatch, and as :class:`SealedReader`; from the second MalformedMessage
    """
    other = AnnouncementMismatch("the masked sum is for another release, or of another length")
    elements = ElementReader(
        expected.length,
        f"a masked sum of {expected.length} elements was announced, more came",
        f"a masked sum has {expected.length} elements, {{}} came",
        expected.share_kind.ring_bits,
    )
    return reader_of(expected, key, other), elements


# --- output -----------------------------------------------------------------------------------------------------------


SHORT_BYTES: Final = 2**14
"""The length of content from which the padding of a session costs more than a seal."""
_FRAMED: Final = b"\x00"
"""A frame begins with its header's length, a seal with the first letter of its magic."""


def output_kind(side: Side, round_number: int, bits: RingBits) -> ShareKind:
    """Return the kind of share that a side serves in this ring."""
    return ShareKind.SEED if masking_side(round_number) is side else ShareKind.vector_of(bits)


def is_short_output(header: OutputHeader) -> bool:
    """True if the output goes without a seal of its own where a session seals it."""
    return output_content_bytes(header) <= SHORT_BYTES


def frame_output(header: OutputHeader, content: Iterable[Octets]) -> bytes:
    """A short output without a seal. Requires: a session seals it, to the site that the header names"""
    return pack_frame(header, b"".join(content))


def seal_output(
    header: OutputHeader, content: Iterable[Octets], recipient: SealingPublicKey, secret: bytes
) -> SealedMessage:
    """The body, made while it is sent. Requires: ``secret`` as :func:`seal_body`"""
    made = seal_body(header, content, recipient, secret)
    return replace(made, length=len(made.head) + sealed_length(output_content_bytes(header)))


def output_content_bytes(header: OutputHeader) -> int:
    return content_bytes(header.share_kind, header.length, Kind.SUM)


def most_output_bytes(header: OutputHeader) -> int:
    return most_body_bytes(output_content_bytes(header))


def read_output(expected: OutputHeader, key: SealingKey, pieces: Iterable[Octets]) -> Iterator[bytes]:
    """The content of exactly the expected output, piece by piece; the last piece once the end is authentic.

    Requires: the pieces come from the server (client_agent/net/answers.py), who alone can have left out the seal
    Raises:   TranscriptMismatch, MalformedMessage, BrokenSeal
    """
    other = TranscriptMismatch(f"server {expected.side} served the output of another release, kind or recipient")
    following = iter(pieces)
    first = next((piece for piece in following if len(piece)), b"")
    if is_short_output(expected) and bytes(first[:1]) == _FRAMED:
        header, content = unpack_frame(b"".join([first, *following]), OutputHeader)
        if header != expected:
            raise other
        yield bytes(content)
        return
    yield from open_body(reader_of(expected, key, other), chain([first], following))


def output_seed(header: OutputHeader, content: Iterable[bytes]) -> bytes:
    """The mask's seed. Raises: MalformedMessage, and as :func:`read_output` from the content"""
    seed = b"".join(content)
    if len(seed) != SEED_BYTES:
        raise MalformedMessage(f"server {header.side} served a mask seed of {len(seed)} bytes, expected {SEED_BYTES}")
    return seed


def output_elements(header: OutputHeader, content: Iterable[bytes]) -> Iterator[tuple[int, Ring]]:
    """The masked sum piece by piece, each with its place; the last one once the end is authentic.

    Raises: MalformedMessage, and as :func:`read_output` from the content
    """
    side, length = header.side, header.length
    elements = ElementReader(
        length,
        f"server {side} served more than {length} elements",
        f"server {side} served {{}} elements, expected {length}",
        header.share_kind.ring_bits,
    )
    for piece in content:
        yield elements.feed(piece)
    elements.finish()
