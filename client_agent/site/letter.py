"""Letters between sites through the servers, which see sealed bytes only (docs/protocol.md 3, 4).

Every letter is signed inside its seal, or covered by a digest that the requester signed, so that the relaying server
cannot write one. It is padded inside its seal, so that its length says nothing that the servers do not know.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.errors import BadSignature, Clause, ErrorCode
from protocol.messages.control import (
    Digest,
    KeyId,
    Message,
    PartyName,
    RoundNumber,
    RoundOutcome,
    Secret32,
    Signed,
    WeightList,
)
from protocol.rounds.evidence import PastRelease


class CountedClasses(Message):
    """The released sum of the class counts, by class: what every site weighs itself with. ``round`` released it."""

    KIND: ClassVar[str] = "counted_classes"
    study_digest: Digest
    round: RoundNumber
    totals: tuple[Annotated[int, Field(ge=0)], ...]


class StudyRefusal(Message):
    """A site takes no part in a study, and tells the requester (alone) why, before the first round.

    ``clause`` is the demand of its policy that the study breaks; ``reason`` is for people.
    """

    KIND: ClassVar[str] = "study_refusal"
    study_digest: Digest
    site: PartyName
    code: ErrorCode
    clause: Clause | None = None
    reason: Annotated[str, Field(max_length=2000)]


class Hindrance(Message):
    """A site does not begin a study, since its people must mend something, ``declined`` it, or ``paused`` it for now.

    The requester is told. What is to be mended stays at the site: the names in its files, and what is wrong with its
    data, are in no message.
    """

    KIND: ClassVar[str] = "hindrance"
    study_digest: Digest
    site: PartyName
    declined: bool = False
    paused: bool = False
    since_s: Annotated[int, Field(ge=0)]


class Attestation(Message):
    """A contributor of a round says what its model is after it applied that round's sum; sealed to the requester.

    ``checkpoint_digest`` is SHA-256 of the model, with the server optimiser's moments behind it.
    """

    KIND: ClassVar[str] = "attestation"
    study_digest: Digest
    site: PartyName
    model_version: Annotated[int, Field(ge=1)]
    round: RoundNumber
    checkpoint_digest: Digest


class Welcome(Message):
    """The requester lets a site in: the sites' common key, and where the model stands.

    ``content_key`` opens the checkpoint that waits for every site under the same version. ``previous`` is the release
    that led to this model: a site that holds an older one takes no other without it. Under CKKS the sites' secret key
    follows from ``ckks_key_seed``.
    """

    KIND: ClassVar[str] = "welcome"
    study_digest: Digest
    site: PartyName
    model_version: Annotated[int, Field(ge=0)]
    checkpoint_digest: Digest
    site_key: Secret32
    content_key: Secret32
    previous: PastRelease | None = None
    attestations: tuple[Signed[Attestation], ...] = ()
    ckks_key_seed: Digest | None = Field(default=None, repr=False)
    ckks_key_id: KeyId | None = None


class WeightMail(Message):
    """The weight list of a round (its digest is in the announcement), and how the rounds before it ended.

    ``previous`` is the last release, ``missed`` those before it since this site last took part, so that it can open
    their sums and apply them; ``skipped`` the rounds that both servers signed as skipped, before ``previous`` only
    for sites that were not in it. ``counted`` is for sites that missed the class counts, signed by the requester.
    """

    KIND: ClassVar[str] = "weight_mail"
    weight_list: WeightList
    previous: PastRelease | None = None
    missed: tuple[PastRelease, ...] = ()
    skipped: tuple[Signed[RoundOutcome], ...] = ()
    counted: Signed[CountedClasses] | None = None


def require_same(what: str, found: str, expected: str) -> None:
    """BadSignature when a letter was written for another study or site than it arrived at."""
    if found != expected:
        raise BadSignature(f"a letter is for another {what}: found {found}, expected {expected}")
