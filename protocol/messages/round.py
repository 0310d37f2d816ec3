"""The messages of one round, from its announcement to its end (docs/protocol.md 4, 8, 9, 15)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, model_validator

from protocol.channel.message import (
    Attempt,
    Digest,
    KeyId,
    Message,
    PartyName,
    RoundNumber,
    Secret32,
    Signed,
    Version,
    omitted,
)
from protocol.errors import Clause, ErrorCode
from protocol.messages.purpose import CAUSES, OutcomeCause, Purpose, RoundState, StudyProtection
from protocol.parameters import WORD_BITS, Needs, RingBits
from protocol.sharing import Side


class OfAttempt(BaseModel):
    """Base of what is said about one attempt of one round."""

    study_digest: Digest
    round: RoundNumber
    attempt: Attempt


class Announcement(Message):
    """The requester opens a round. ``listed`` are the contributors, in roster order, without the requester.

    ``opens`` is what the requester learns about single sites. The vectors are updates, to be summed or measured, every
    site's class counts or summary, or its ridge regression (each once per study, docs/protocol.md 8, 9 and 17).
    ``model_version`` counts the aggregates applied so far; ``model_digest`` is an HMAC that only sites can check.
    ``ckks_key_id`` names the sites' key when they send ciphertexts instead of shares, ``tag_seed_hash`` the seed of the
    round's tags, where it has tags (docs/protocol.md 15). ``roster_head`` names the link of the roster under which the
    round runs; None is the first one, which the study pins (docs/protocol.md 20).
    """

    KIND: ClassVar[str] = "announcement"
    study_digest: Digest
    round: RoundNumber
    listed: tuple[PartyName, ...]
    least_contributors: Annotated[int, Field(ge=1)]
    opens: Needs
    purpose: Purpose = Purpose.UPDATE
    model_version: Annotated[int, Field(ge=0)]
    model_digest: Digest
    weight_list_digest: Digest
    closes_at_s: Annotated[int, Field(ge=0, le=2**53)]
    ckks_key_id: KeyId | None = None
    tag_seed_hash: Digest | None = omitted()
    roster_head: Digest | None = omitted()

    @model_validator(mode="after")
    def _consistent(self) -> Announcement:
        if len(set(self.listed)) != len(self.listed):
            raise ValueError("a site is listed twice")
        if len(self.listed) < self.least_contributors:
            raise ValueError(f"{len(self.listed)} sites listed, least_contributors is {self.least_contributors}")
        plan = self.purpose.plan
        if plan.opened(self.opens) is not self.opens:
            raise ValueError(plan.opens_alone)
        if self.protection.plan.keyed and (not plan.steps_model or self.measured):
            raise ValueError("only updates about which nothing is opened travel under CKKS")
        if self.tagged and (not plan.summed or self.protection.plan.keyed):
            raise ValueError("only sums of shares carry tags: leave tag_seed_hash out")
        return self

    @property
    def protection(self) -> StudyProtection:
        """The protection of this round's vectors."""
        return StudyProtection.under(self.ckks_key_id)

    @property
    def tagged(self) -> bool:
        """True if the round's vectors end with tags."""
        return self.tag_seed_hash is not None

    @property
    def measured(self) -> bool:
        """True if anything is opened about single sites besides the range check."""
        return self.opens is not Needs.NOTHING


class ListedWeight(Message):
    KIND: ClassVar[str] = "listed_weight"
    site: PartyName
    numerator: Annotated[int, Field(ge=0)]


class WeightList(Message):
    """Every listed site's weight as a numerator over the study's grid; sealed to each listed site, never to a server.

    ``requester`` is the requester's own numerator; None, for rules that do not choose it, is the grid. ``salt`` makes
    the announced digest hiding; ``digest()`` covers it. ``tag_seed`` is the seed of the round's tags, if any.
    """

    KIND: ClassVar[str] = "weight_list"
    study_digest: Digest
    round: RoundNumber
    grid: Annotated[int, Field(ge=1)]
    weights: tuple[ListedWeight, ...]
    salt: Secret32
    requester: Annotated[int, Field(ge=0)] | None = omitted()
    tag_seed: Digest | None = Field(default=None, repr=False, exclude_if=lambda found: found is None)

    @property
    def own_numerator(self) -> int:
        """The requester's weight over the grid."""
        return self.grid if self.requester is None else self.requester

    def numerators(self) -> dict[str, int]:
        """The weights on the list over the grid, by site."""
        return {listed.site: listed.numerator for listed in self.weights}

    def numerator_of(self, site: str) -> int | None:
        return next((w.numerator for w in self.weights if w.site == site), None)


class Decline(Message):
    """A site does not contribute to this round, and tells the requester (alone) why.

    ``code`` is the kind of error, ``clause`` the demand of the site's policy that broke; ``reason`` is for people.
    """

    KIND: ClassVar[str] = "decline"
    study_digest: Digest
    round: RoundNumber
    site: PartyName
    code: ErrorCode
    clause: Clause | None = None
    reason: Annotated[str, Field(max_length=2000)]


class ShareKind(StrEnum):
    """One server's form of a vector; ``ciphertext``: all of it, under the sites' key.

    ``vector48``: elements of the ring of 48 bits, six bytes each (section 24).
    """

    SEED = "seed"
    VECTOR = "vector"
    VECTOR48 = "vector48"
    CIPHERTEXT = "ciphertext"

    @classmethod
    def vector_of(cls, bits: RingBits) -> ShareKind:
        """A vector in this ring."""
        return cls.VECTOR if bits == WORD_BITS else cls.VECTOR48

    @property
    def ring_bits(self) -> RingBits:
        """The ring of a vector's elements."""
        return 48 if self is ShareKind.VECTOR48 else WORD_BITS


NO_COMMITMENT: Final = "0" * 64
"""Side B's commitment to an encrypted update, of which B gets nothing."""


class ContributionHeader(Message):
    """The public header of a sealed share; HPKE's info binds all of it.

    ``length`` counts ring elements, or the values of an encrypted update.
    """

    KIND: ClassVar[str] = "contribution"
    version: Version = "moiety/2"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    site: PartyName
    side: Side
    announcement_digest: Digest
    commitment_a: Digest
    commitment_b: Digest
    share_kind: ShareKind
    length: Annotated[int, Field(ge=1)]


class Receipt(OfAttempt, Message):
    """A server stored this share durably; ``body_digest`` is the sealed message's digest."""

    KIND: ClassVar[str] = "receipt"
    site: PartyName
    side: Side
    body_digest: Digest


class CollectedContribution(Message):
    """A server's statement of what it holds of one site."""

    KIND: ClassVar[str] = "collected"
    site: PartyName
    announcement_digest: Digest
    commitment_a: Digest
    commitment_b: Digest


class AgreedSet(OfAttempt, Message):
    """The contributions that both servers hold with matching commitments, in roster order; signed by both."""

    KIND: ClassVar[str] = "agreed_set"
    announcement_digest: Digest
    contributions: tuple[CollectedContribution, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(c.site for c in self.contributions)


class ChallengeTranscript(Message):
    """The coin toss after the lock: A's commitment to n_A, B's n_B, A's opening; signed by both."""

    KIND: ClassVar[str] = "challenge"
    agreed_set_digest: Digest
    commitment_a: Digest
    nonce_b: Digest
    nonce_a: Digest
    challenge: Digest


class QueryHeader(Message):
    """Public header of the requester's sealed query shares: one vector of ``length`` per target, in this order."""

    KIND: ClassVar[str] = "query"
    version: Version = "moiety/2"
    transcript_digest: Digest
    side: Side
    share_kind: ShareKind
    targets: tuple[PartyName, ...]
    length: Annotated[int, Field(ge=0)]


class OpeningHeader(Message):
    """The header of a sealed opening: the range shares of every site in ``checked``, then its values, in this order."""

    KIND: ClassVar[str] = "opening"
    transcript_digest: Digest
    side: Side
    checked: tuple[PartyName, ...]
    opens: Needs


class ReleaseSet(OfAttempt, Message):
    """The subset of the agreed set whose sum is opened to the sites; signed by the requester, one per round."""

    KIND: ClassVar[str] = "release_set"
    agreed_set_digest: Digest
    sites: tuple[PartyName, ...]
    failed_check: tuple[PartyName, ...] = ()


class SumRelease(OfAttempt, Message):
    """A round of ciphertexts ends with this sum and no other end; signed by both servers, and served only then.

    ``release_digest`` is the release set's, ``sum_digest`` the SHA-256 of the sum's body. Whoever signed it signs no
    skip of the round, and whoever signed a skip never signs it (docs/protocol.md 11).
    """

    KIND: ClassVar[str] = "sum_release"
    release_digest: Digest
    sum_digest: Digest


class OutputHeader(Message):
    """Public header of one output share, sealed to one site: the masked vector, or the mask's seed.

    ``recipient`` is the id of that site's key: a proxy that opens TLS reads headers, and no names in them.
    """

    KIND: ClassVar[str] = "output"
    version: Version = "moiety/2"
    release_digest: Digest
    side: Side
    share_kind: ShareKind
    recipient: KeyId
    length: Annotated[int, Field(ge=1)]


class RoundOutcome(OfAttempt, Message):
    """A round that ended without a release, or an attempt that was burnt; signed by both servers.

    ``ranked``: a ranking whose losses may have been opened to the requester, ``closed``: likewise a measurement. A
    server that holds its half of what is opened signs no skip of that round, so a skip with both signatures says that
    nothing was opened.
    ``found`` and ``needed`` are the numbers that a cause speaks of, ``code`` the error that burnt an attempt, ``site``
    whose share a server lost.
    """

    KIND: ClassVar[str] = "round_outcome"
    outcome: Literal[RoundState.SKIPPED, RoundState.RANKED, RoundState.CLOSED, RoundState.BURNT]
    cause: OutcomeCause
    found: Annotated[int, Field(ge=0)] | None = None
    needed: Annotated[int, Field(ge=0)] | None = None
    code: ErrorCode | None = None
    site: PartyName | None = omitted()

    @model_validator(mode="after")
    def _consistent(self) -> RoundOutcome:
        if self.cause not in CAUSES[self.outcome]:
            raise ValueError(f"{self.cause.value} is no cause of a round that is {self.outcome.value}")
        return self

    @property
    def reason(self) -> str:
        """The cause in words, for people."""
        text = self.cause.said(self.found, self.needed, self.site)
        return text if self.code is None else f"{text}: {self.code.value}"


_Element = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""A ring element: 16 hex digits, the highest first."""
Words = tuple[_Element, _Element]


class TagSeed(OfAttempt, Message):
    """The requester shows a server the seed of the round's tags, once both servers have committed to their halves."""

    KIND: ClassVar[str] = "tag_seed"
    seed: Secret32


class OutputCommitment(OfAttempt, Message):
    """A server's commitment to what it will serve of a release, signed before it sees the seed of the tags.

    ``half_digest`` is a commitment to the mask's seed, or the digest of the masked vector (``protocol.tags``).
    """

    KIND: ClassVar[str] = "output_commitment"
    release_digest: Digest
    side: Side
    share_kind: ShareKind
    half_digest: Digest


class TagCheck(OfAttempt, Message):
    """<K_j, half> - tag_j over a server's own half of the output, not refreshed; signed by that server.

    Both servers' values add up to the errors of the sum's tags, zero where nothing is wrong.
    """

    KIND: ClassVar[str] = "tag_check"
    side: Side
    commitment_digest: Digest
    values: Words


class HalvesChecked(OfAttempt, Message):
    """Both servers' commitments and checks of one release, side A's first, each signed by its server."""

    KIND: ClassVar[str] = "halves_checked"
    release_digest: Digest
    commitments: tuple[Signed[OutputCommitment], Signed[OutputCommitment]]
    checks: tuple[Signed[TagCheck], Signed[TagCheck]]


class Go(HalvesChecked):
    """The checks add up to zero: the servers may serve the halves that they committed to. Signed by the requester."""

    KIND: ClassVar[str] = "go"


class TagsFailed(HalvesChecked):
    """They do not: nothing is served, and the round ends. Signed by the requester."""

    KIND: ClassVar[str] = "tags_failed"


class TagShares(OfAttempt, Message):
    """A server's shares of the errors of single sites' tags, for the requester alone; signed by that server.

    They add up to zero for a site whose tags are those of its vector.
    """

    KIND: ClassVar[str] = "tag_shares"
    release_digest: Digest
    side: Side
    sites: tuple[PartyName, ...]
    values: Annotated[tuple[Words, ...], Field(repr=False)]

    @model_validator(mode="after")
    def _consistent(self) -> TagShares:
        if len(self.sites) != len(self.values):
            raise ValueError(f"{len(self.sites)} sites and {len(self.values)} values; one for each")
        return self
