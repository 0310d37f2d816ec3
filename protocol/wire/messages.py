"""One frozen model per control message: canonical bytes, digests, signatures (docs/protocol.md 3, 4, 8, 9).

Canonical bytes are JSON with sorted keys and no spaces. A digest is SHA-256 over the message's kind and
those bytes, so that two kinds can never be mistaken for one another. Vectors never travel in these messages.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.errors import MalformedMessage
from protocol.parameters import PROTOCOL_VERSION, StudyParameters
from protocol.sharing import Side

PartyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
StudyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
SignatureHex = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
RoundNumber = Annotated[int, Field(ge=1, le=10**6)]
Attempt = Annotated[int, Field(ge=1, le=1000)]
Version = Literal["moiety/1"]

MAX_CONTROL_BYTES: Final = 4 * 2**20


class Message(BaseModel):
    """Base of every control message: immutable, strict, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    KIND: ClassVar[str]

    def canonical(self) -> bytes:
        """The bytes that are sent, hashed and signed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def digest(self) -> str:
        """Hex SHA-256 over the kind and the canonical bytes."""
        return hashlib.sha256(f"{PROTOCOL_VERSION} {self.KIND}\x00".encode() + self.canonical()).hexdigest()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse received bytes; MalformedMessage names the first field that is wrong."""
        if len(data) > MAX_CONTROL_BYTES:
            raise MalformedMessage(f"{cls.KIND}: {len(data)} bytes, at most {MAX_CONTROL_BYTES} are allowed")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise MalformedMessage(f"{cls.KIND}: {where}: {first['msg']}") from None


class Signature(Message):
    """An Ed25519 signature by a named party over a message's domain and canonical bytes."""

    KIND: ClassVar[str] = "signature"
    signer: PartyName
    value: SignatureHex


M = TypeVar("M", bound=Message)


class Signed(Message, Generic[M]):
    """A message with the signatures collected so far; ``protocol.wire.authentic`` adds and checks them."""

    KIND: ClassVar[str] = "signed"
    message: M
    signatures: tuple[Signature, ...] = ()

    def signature_of(self, signer: str) -> Signature | None:
        return next((s for s in self.signatures if s.signer == signer), None)


# --- who takes part ------------------------------------------------------------------------------------------------


class Role(StrEnum):
    OPERATOR = "operator"
    SITE = "site"


class Party(Message):
    """A party's public keys and, for an operator, where its server is reached."""

    KIND: ClassVar[str] = "party"
    name: PartyName
    role: Role
    signing_key: Digest
    sealing_key: Annotated[str, Field(pattern=r"^[0-9a-f]{2432}$")]
    url: Annotated[str, Field(pattern=r"^https://[^\s/?#]+$")] | None = None
    samples: Annotated[int, Field(ge=1)] | None = None


class Roster(Message):
    """Every party of a federation with its keys; signed by both operators and the requester.

    ``samples`` of a site is |S_i|, declared at enrolment (docs/protocol.md 10). ``sites`` includes the requester.
    """

    KIND: ClassVar[str] = "roster"
    federation: StudyName
    operator_a: Party
    operator_b: Party
    requester: PartyName
    sites: tuple[Party, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Roster:
        names = [self.operator_a.name, self.operator_b.name, *(site.name for site in self.sites)]
        if len(set(names)) != len(names):
            raise ValueError("two parties have the same name")
        keys = [p.signing_key for p in self.parties] + [p.sealing_key for p in self.parties]
        if len(set(keys)) != len(keys):
            raise ValueError("two parties have the same key")
        if self.requester not in {site.name for site in self.sites}:
            raise ValueError(f"the requester {self.requester!r} is not among the sites")
        if any(p.role is not Role.OPERATOR or p.url is None for p in (self.operator_a, self.operator_b)):
            raise ValueError("operator_a and operator_b need role 'operator' and a https url")
        if any(p.role is not Role.SITE or p.samples is None for p in self.sites):
            raise ValueError("every site needs role 'site' and its number of training samples")
        return self

    @property
    def parties(self) -> tuple[Party, ...]:
        return (self.operator_a, self.operator_b, *self.sites)

    @property
    def contributors(self) -> tuple[Party, ...]:
        """The sites without the requester, in roster order."""
        return tuple(site for site in self.sites if site.name != self.requester)

    def party(self, name: str) -> Party | None:
        return next((p for p in self.parties if p.name == name), None)

    def operator(self, side: Side) -> Party:
        return self.operator_a if side is Side.A else self.operator_b

    def place(self, site: str) -> int:
        """The site's place in the roster: decides which server gets its vector share."""
        return next(i for i, p in enumerate(self.sites) if p.name == site)


# --- what is studied -----------------------------------------------------------------------------------------------


class LayerShape(Message):
    KIND: ClassVar[str] = "layer"
    name: str
    shape: tuple[Annotated[int, Field(ge=1)], ...]


class ModelSpec(Message):
    """A built-in model (``linear``, ``mlp``, ``cnn``) by its sizes, or ``plugin``; the shared layers are in order."""

    KIND: ClassVar[str] = "model"
    kind: Literal["linear", "mlp", "cnn", "plugin"]
    inputs: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    classes: int = 2
    layers: tuple[LayerShape, ...]


class TrainingSpec(Message):
    """What an update is: one mini-batch gradient, or the sum of the step gradients of local SGD epochs."""

    KIND: ClassVar[str] = "training"
    update: Literal["gradient", "local_sgd"] = "gradient"
    batch_size: Annotated[int, Field(ge=1)] = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    local_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    server_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class RuleName(StrEnum):
    WEIGHT_EROSION = "weight_erosion"
    FEDAVG = "fedavg"
    LOCAL = "local"


class RuleSpec(Message):
    """The aggregation rule and its options; options a rule does not know are refused by the rule."""

    KIND: ClassVar[str] = "rule"
    name: RuleName
    distance_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    size_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    erosion_applies: Literal["next_round", "same_round"] = "next_round"


class Study(Message):
    """Everything the parties agree on before round 1; its digest binds every later message.

    Signed by the requester and countersigned by both servers. ``seed`` fixes the training order in seeded
    (loopback-only) federations.
    """

    KIND: ClassVar[str] = "study"
    version: Version = "moiety/1"
    name: StudyName
    roster_digest: Digest
    parameters: StudyParameters
    rule: RuleSpec
    model: ModelSpec
    training: TrainingSpec
    rounds: RoundNumber
    round_deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0
    correlation_source: Literal["ot", "dealer"] = "ot"
    seed: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        total = 0
        for layer in self.model.layers:
            size = 1
            for n in layer.shape:
                size *= n
            total += size
        if total != self.parameters.dimension:
            raise ValueError(
                f"the layers hold {total} parameters, parameters.dimension says {self.parameters.dimension}"
            )
        if self.rule.erosion_applies == "same_round":
            raise ValueError(
                "erosion_applies='same_round' exists in plain simulation only: sites scale before they share"
            )
        return self


class ReadyNotice(Message):
    """A site says that it holds its data and model and can be listed from now on."""

    KIND: ClassVar[str] = "ready"
    study_digest: Digest
    site: PartyName


class StudyEndState(StrEnum):
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"


class StudyEnd(Message):
    """The requester ends the study, in a named state with a reason."""

    KIND: ClassVar[str] = "study_end"
    study_digest: Digest
    state: StudyEndState
    reason: Annotated[str, Field(max_length=500)]


# --- a round -------------------------------------------------------------------------------------------------------


class Announcement(Message):
    """The requester opens a round. ``listed`` are the contributors, in roster order, without the requester.

    ``model_version`` counts the aggregates applied so far; ``model_digest`` is an HMAC that only sites can check.
    """

    KIND: ClassVar[str] = "announcement"
    study_digest: Digest
    round: RoundNumber
    listed: tuple[PartyName, ...]
    least_contributors: Annotated[int, Field(ge=1)]
    measured: bool
    model_version: Annotated[int, Field(ge=0)]
    model_digest: Digest
    weight_list_digest: Digest
    closes_at_s: Annotated[int, Field(ge=0, le=2**53)]

    @model_validator(mode="after")
    def _consistent(self) -> Announcement:
        if len(set(self.listed)) != len(self.listed):
            raise ValueError("a site is listed twice")
        if len(self.listed) < self.least_contributors:
            raise ValueError(f"{len(self.listed)} sites listed, least_contributors is {self.least_contributors}")
        return self


class ListedWeight(Message):
    KIND: ClassVar[str] = "listed_weight"
    site: PartyName
    numerator: Annotated[int, Field(ge=0)]


class WeightList(Message):
    """Every listed site's weight as a numerator over the study's grid; sealed to each listed site, never to a server.

    ``salt`` makes the announced digest hiding; ``digest()`` covers it.
    """

    KIND: ClassVar[str] = "weight_list"
    study_digest: Digest
    round: RoundNumber
    grid: Annotated[int, Field(ge=1)]
    weights: tuple[ListedWeight, ...]
    salt: Secret32

    def numerator_of(self, site: str) -> int | None:
        return next((w.numerator for w in self.weights if w.site == site), None)


class Decline(Message):
    """A site does not contribute to this round, and tells the requester (alone) why."""

    KIND: ClassVar[str] = "decline"
    study_digest: Digest
    round: RoundNumber
    site: PartyName
    code: str
    reason: Annotated[str, Field(max_length=2000)]


class ShareKind(StrEnum):
    SEED = "seed"
    VECTOR = "vector"


class ContributionHeader(Message):
    """The public header of a sealed share; HPKE's info binds all of it."""

    KIND: ClassVar[str] = "contribution"
    version: Version = "moiety/1"
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


class Receipt(Message):
    """A server stored this share durably; ``body_digest`` is the SHA-256 of the sealed bytes."""

    KIND: ClassVar[str] = "receipt"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    site: PartyName
    side: Side
    body_digest: Digest


class CollectedContribution(Message):
    """What a server says it holds of one site."""

    KIND: ClassVar[str] = "collected"
    site: PartyName
    announcement_digest: Digest
    commitment_a: Digest
    commitment_b: Digest


class AgreedSet(Message):
    """The contributions that both servers hold with matching commitments, in roster order; signed by both."""

    KIND: ClassVar[str] = "agreed_set"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
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
    """Public header of the requester's sealed query shares: one k-vector per target, in this order."""

    KIND: ClassVar[str] = "query"
    version: Version = "moiety/1"
    transcript_digest: Digest
    side: Side
    share_kind: ShareKind
    targets: tuple[PartyName, ...]
    length: Annotated[int, Field(ge=0)]


class OpeningHeader(Message):
    """Names what a sealed opening holds: range shares of ``checked`` and distance shares of ``measured``, in order."""

    KIND: ClassVar[str] = "opening"
    transcript_digest: Digest
    side: Side
    checked: tuple[PartyName, ...]
    measured: tuple[PartyName, ...]


class ReleaseSet(Message):
    """The subset of the agreed set whose sum is opened to the sites; signed by the requester, one per round."""

    KIND: ClassVar[str] = "release_set"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    agreed_set_digest: Digest
    sites: tuple[PartyName, ...]
    failed_check: tuple[PartyName, ...] = ()


class OutputHeader(Message):
    """Public header of one output share, sealed to one site: the masked vector, or the mask's seed."""

    KIND: ClassVar[str] = "output"
    version: Version = "moiety/1"
    release_digest: Digest
    side: Side
    share_kind: ShareKind
    recipient: PartyName
    length: Annotated[int, Field(ge=1)]


class RoundState(StrEnum):
    ANNOUNCED = "announced"
    COLLECTING = "collecting"
    LOCKED = "locked"
    MEASURED = "measured"
    RELEASED = "released"
    SKIPPED = "skipped"
    BURNT = "burnt"


class RoundOutcome(Message):
    """A round that ended without a release, or an attempt that was burnt; signed by both servers."""

    KIND: ClassVar[str] = "round_outcome"
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    outcome: Literal[RoundState.SKIPPED, RoundState.BURNT]
    reason: Annotated[str, Field(max_length=500)]


class StudyState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self not in (StudyState.OPEN, StudyState.PAUSED)


# --- what a server tells its callers -------------------------------------------------------------------------------


class RoundView(Message):
    """One server's view of the current round, as served to the study's sites."""

    KIND: ClassVar[str] = "round_view"
    round: RoundNumber
    attempt: Attempt
    state: RoundState
    announcement: Signed[Announcement]
    agreed_set: Signed[AgreedSet] | None = None
    transcript: Signed[ChallengeTranscript] | None = None
    release_set: Signed[ReleaseSet] | None = None
    outcome: Signed[RoundOutcome] | None = None


class StudyView(Message):
    """One server's view of a study. ``cursor`` grows with every change: pass it back to wait for the next."""

    KIND: ClassVar[str] = "study_view"
    study: StudyName
    study_digest: Digest
    state: StudyState
    reason: str
    cursor: int
    ready: tuple[PartyName, ...]
    mail: tuple[str, ...]
    current: RoundView | None = None


class StudyList(Message):
    """The studies whose roster holds the caller."""

    KIND: ClassVar[str] = "study_list"
    studies: tuple[Signed[Study], ...]
