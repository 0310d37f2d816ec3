"""A site's contribution: one server's part of its vector, sealed to it (docs/protocol.md 3, 11).

    header    which round, attempt, site and side; the commitments to all parts; what follows
    content   seed: 32 bytes whose stream is the share | vector: the share's elements, 8 bytes each, or 6 of a vector48
              | ciphertext: the whole update under the sites' key, for side A alone

Both parts' headers name both commitments, which are known once both contents are encrypted: so the content is
encrypted first, and the head put in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.arithmetic.fixed_point import element_bytes
from protocol.arithmetic.ring import SEED_BYTES
from protocol.channel.commitment import COMMITMENT_BYTES, BodyHash, commitment, message_digest
from protocol.channel.keys import SealingPublicKey
from protocol.channel.sealing import Octets, encrypt_body, sealed_head, sealed_head_length
from protocol.ckks.ciphertext import CkksParameters, Kind, body_bytes
from protocol.errors import AnnouncementMismatch, MalformedMessage, NotListed, WrongRound
from protocol.messages.control import NO_COMMITMENT, Announcement, ContributionHeader, Roster, ShareKind
from protocol.parameters import WORD_BITS, RingBits
from protocol.sharing import Side, vector_side

_NO_COMMITMENT: Final = bytes(COMMITMENT_BYTES)


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


def content_bytes(kind: ShareKind, length: int) -> int:
    """Return the content bytes of a part; ``length`` as in its header."""
    if kind is ShareKind.CIPHERTEXT:
        return body_bytes(CkksParameters(), Kind.CONTRIBUTION, length)
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
        self._taken = BodyHash()

    @property
    def head_bytes(self) -> int:
        """Return the bytes of the head, whatever the commitments are."""
        return sealed_head_length(len(self.part.header({}).canonical()))

    def sealed_content(self, content: Iterable[Octets]) -> Iterator[Octets]:
        """The encrypted content, piece by piece; once, and to the end before anything else is asked."""
        return self._taken.over(encrypt_body(self._content_key, content))

    def commitment(self) -> bytes:
        return commitment(self._salt, self._content_key, self._taken.digest())

    def head(self, committed: Mapping[Side, bytes]) -> tuple[bytes, bytes]:
        """Return the head, all before the encrypted content, and the digest of the whole message."""
        header = self.part.header(committed).canonical()
        head = sealed_head(header, self._recipient, self._content_key, self._salt)
        return head, message_digest(head, self._taken.digest())
