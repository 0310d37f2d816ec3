"""Frozen records of single sites' messages and of a server's answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from protocol.messages.control import ContributionHeader, Receipt, Signed
from protocol.rounds.states import RoundKey


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
