"""Frozen records of studies, rounds and single sites' messages, summaries of them for people, and their rows.

A record's fields are its table's columns: a round's key is three of them, signed messages are their canonical bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cache, lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, get_type_hints

from protocol.messages.control import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    ContributionHeader,
    Go,
    Message,
    OutputCommitment,
    QueryHeader,
    Receipt,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    StudyEnd,
    StudyState,
    SumRelease,
    TagCheck,
    TagsFailed,
)
from protocol.rounds.states import FINAL_STATES, Attempt, RoundKey

if TYPE_CHECKING:  # a worker of a cluster reads records' tags, and needs no database
    from sqlalchemy import Row


@dataclass(frozen=True)
class ContributionRecord:
    """One site's share of one attempt; ``file`` is None once the share has been deleted.

    ``wrapped_key``: of a share that lies encrypted in the storage of a cluster; without it that is noise.
    ``chunk_tags``: what every later reader compares the file with; None where an earlier release stored it.
    """

    key: RoundKey
    site: str
    header: ContributionHeader
    body_digest: str
    receipt: Signed[Receipt]
    file: str | None
    wrapped_key: bytes | None = field(default=None, repr=False)
    chunk_tags: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class MailRecord:
    """Sealed bytes that one site left for another, or for every site."""

    study: str
    sender: str
    recipient: str
    topic: str
    body_digest: str
    file: str


@dataclass(frozen=True)
class CorrelationUse:
    """A correlation bound for ever to one site of one attempt."""

    key: RoundKey
    site: str
    session: str
    batch: int
    index: int


A_NEW_STUDY: Final = "new"
"""In place of a study's digest where changes are told: there is one study more."""


class AnswerKind(StrEnum):
    """Bytes that are made once and served again and again."""

    OPENING = "opening"
    PRODUCTS = "products"
    TAG_SHARES = "tag_shares"


@dataclass(frozen=True)
class Answer:
    """``request_digest`` is the SHA-256 of what was answered; empty where nothing was asked with a body."""

    kind: AnswerKind
    request_digest: str
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Refusal:
    """A message that was refused in a way worth keeping: conflicting bytes under one id."""

    study: str
    party: str
    code: str
    detail: str
    at_s: float


T = TypeVar("T")


@dataclass(frozen=True)
class StudyRecord:
    """A study, where it stands, and how often its requester was absent in a row.

    ``stranded_by``: whose older database was put back while it was under way; it does not go on and can only be ended.
    """

    digest: str
    signed: Signed[Study]
    state: StudyState
    reason: str
    cursor: int
    absent_in_a_row: int = 0
    end: Signed[StudyEnd] | None = None
    stranded_by: str | None = None

    @property
    def study(self) -> Study:
        return self.signed.message

    @property
    def name(self) -> str:
        return self.signed.message.name

    @property
    def goes_on(self) -> bool:
        """True while rounds of it can be begun or finished."""
        return not self.state.ended and self.stranded_by is None and self.study.unsupported is None


class IncompleteRecord(AssertionError):
    """A round lacks what it must have by its state: this server's own error, and nobody's message was wrong."""


class Later(Generic[T]):
    """A value that a round has from a later state on. Raises: IncompleteRecord, before that"""

    def __init__(self, column: str, what: str) -> None:
        self._column = column
        self._what = what

    def __get__(self, record: RoundRecord, kind: object = None) -> T:
        value: T | None = getattr(record, self._column)
        if value is None:
            raise IncompleteRecord(
                f"{record.key.label} is {record.state} here and has no {self._what}, which it must have by now: a "
                "server's error"
            )
        return value


@dataclass(frozen=True)
class Challenged:
    """The fields of a round of shares from its challenge on."""

    agreed_set: Signed[AgreedSet]
    transcript: Signed[ChallengeTranscript]

    @property
    def sites(self) -> tuple[str, ...]:
        return self.agreed_set.message.sites

    @property
    def challenge(self) -> bytes:
        return bytes.fromhex(self.transcript.message.challenge)


@dataclass(frozen=True)
class RoundRecord:
    """One attempt of a round. ``own_nonce`` is n_A or n_B, ``peer_commitment`` A's commitment as B got it.

    From ``commitment`` on, what a round with tags has. A go that side B has from the requester releases nothing by
    itself: ``state`` says whether side A has handed it over.

    What is None comes with a later state. Behind the fields is what code that runs only from that state on asks for.
    """

    key: RoundKey
    state: RoundState
    announcement: Signed[Announcement]
    closes_at_s: float
    agreed_set: Signed[AgreedSet] | None = None
    own_nonce: bytes | None = field(default=None, repr=False)
    peer_commitment: str | None = None
    transcript: Signed[ChallengeTranscript] | None = None
    query_header: QueryHeader | None = None
    query_digest: str | None = None
    query_file: str | None = None
    release_set: Signed[ReleaseSet] | None = None
    mask_seed: bytes | None = field(default=None, repr=False)
    output_file: str | None = None
    sum_release: Signed[SumRelease] | None = None
    outcome: Signed[RoundOutcome] | None = None
    commitment: Signed[OutputCommitment] | None = None
    committed_at_s: float | None = None
    tag_seed: bytes | None = field(default=None, repr=False)
    tag_check: Signed[TagCheck] | None = None
    go: Signed[Go] | None = None
    tags_failed: Signed[TagsFailed] | None = None

    @property
    def over(self) -> bool:
        """True once nothing of this attempt goes on."""
        return self.state in FINAL_STATES or self.state is RoundState.BURNT

    @property
    def begun(self) -> Attempt:
        return Attempt(self.key, self.state, self.announcement.message, self.closes_at_s)

    agreed = Later[Signed[AgreedSet]]("agreed_set", "agreed set")
    nonce = Later[bytes]("own_nonce", "nonce of this side")
    tossed = Later[Signed[ChallengeTranscript]]("transcript", "challenge")
    chosen = Later[Signed[ReleaseSet]]("release_set", "release set")
    mask = Later[bytes]("mask_seed", "mask")
    signed_sum = Later[Signed[SumRelease]]("sum_release", "signed sum")
    committed = Later[Signed[OutputCommitment]]("commitment", "signed half of the output")
    committed_since_s = Later[float]("committed_at_s", "time of its commitment")
    checked = Later[Signed[TagCheck]]("tag_check", "check of its tags")
    seed_of_tags = Later[bytes]("tag_seed", "seed of its tags")
    signed_go = Later[Signed[Go]]("go", "go")
    signed_outcome = Later[Signed[RoundOutcome]]("outcome", "signed outcome")

    @property
    def challenged(self) -> Challenged:
        return Challenged(self.agreed, self.tossed)


class Kept(StrEnum):
    """The kinds of content of files, sealed or as one half of a split."""

    SHARES = "shares"
    QUERIES = "queries"
    OUTPUTS = "outputs"
    LETTERS = "letters"


@dataclass(frozen=True)
class Holdings:
    """One study's holdings: the files that rows name; letters and answers, by number; attempts with seeds or nonces."""

    files: tuple[str, ...]
    letters: int
    answers: int
    rounds: int


@dataclass(frozen=True)
class SeenRound:
    """An attempt as an operator reads it; the times, since 1970, are None for attempts of an earlier release."""

    round: int
    attempt: int
    state: RoundState
    began_at_s: float | None
    state_since_s: float | None
    closes_at_s: float

    @property
    def over(self) -> bool:
        return self.state in FINAL_STATES or self.state is RoundState.BURNT

    def key(self, study: str) -> RoundKey:
        return RoundKey(study, self.round, self.attempt)


R = TypeVar("R")


def row_of(record: StudyRecord | RoundRecord | ContributionRecord | CorrelationUse) -> dict[str, Any]:
    """The columns that a record is stored in."""
    row: dict[str, Any] = {"name": record.name} if isinstance(record, StudyRecord) else {}
    for one in fields(record):
        value = getattr(record, one.name)
        if isinstance(value, RoundKey):
            row |= asdict(value)
        elif isinstance(value, Message):
            row[one.name] = value.canonical()
        else:
            row[one.name] = value.value if isinstance(value, StrEnum) else value
    return row


def record_of(kind: type[R], row: Any) -> R:  # noqa: ANN401  # SQLAlchemy's Row, of columns that its type lists
    """The record that a row stores. Raises: MalformedMessage"""
    return kind(**{name: read(row) for name, read in _columns(kind)})  # type: ignore[arg-type]  # a class can be hashed


@cache
def _columns(kind: type[Any]) -> list[tuple[str, Callable[[Row[Any]], Any]]]:
    """The name of each field, and what reads it from a row."""
    hints = get_type_hints(kind)
    return [(one.name, _reader(one.name, hints[one.name], kind)) for one in fields(kind)]


def _reader(name: str, hint: Any, kind: type[Any]) -> Callable[[Row[Any]], Any]:  # noqa: ANN401  (a type, or a union)
    if hint is RoundKey:
        return lambda row: RoundKey(row.study, row.round, row.attempt)
    (of,) = (one for one in get_args(hint) or (hint,) if one is not NoneType)
    if issubclass(of, Message):
        # every request reads its study and round again, a contribution is read once
        parse: Callable[[type[Message], bytes], Message] = _parsed
        if kind not in (StudyRecord, RoundRecord):
            parse = _parsed.__wrapped__
        return lambda row: None if (found := getattr(row, name)) is None else parse(of, bytes(found))
    if issubclass(of, StrEnum):
        return lambda row: of(getattr(row, name))
    return lambda row: getattr(row, name)


@lru_cache(maxsize=64)
def _parsed(kind: type[Message], canonical: bytes) -> Message:
    return kind.parse(canonical)
