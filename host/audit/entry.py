"""One line of an audit log."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

AGENT: Final = "software"
"""The actor where no person gave a word."""
NOTHING_BEFORE: Final = "0" * 64
_MOST_CHARACTERS: Final = 2000


class Action(StrEnum):
    """The kinds of actions. A server has neither words on studies nor models, a site neither registrations nor
    admissions.
    """

    STARTED = "started"
    STUDY_CREATED = "study_created"
    STUDY_REGISTERED = "study_registered"
    APPROVED = "approved"
    DECLINED = "declined"
    PAUSED = "paused"
    RESUMED = "resumed"
    LEFT = "left"
    ROUND = "round"
    STUDY_ENDED = "study_ended"
    MODEL_EXPORTED = "model_exported"
    DELETED = "deleted"
    ROSTER = "roster"
    ADMITTED = "admitted"


class AuditEntry(BaseModel):
    """``number`` counts from 1; ``previous`` is the digest of the line before; ``time_s`` counts since 1970.

    ``actor`` is a person's name, as given with a word, or ``software``; ``version`` is the release that wrote the line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    number: Annotated[int, Field(ge=1)]
    time_s: float
    party: str
    actor: Annotated[str, Field(max_length=_MOST_CHARACTERS)]
    action: Action
    study: str = ""
    study_digest: str = ""
    round: int | None = None
    detail: Annotated[str, Field(max_length=_MOST_CHARACTERS)] = ""
    version: str
    previous: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def line(self) -> bytes:
        """As the file has it, without the line's end."""
        return self.model_dump_json(exclude_defaults=True).encode()


def digest_of(line: bytes) -> str:
    """Return the digest that the next line names: SHA-256 of this one, without its end."""
    return hashlib.sha256(b"moiety audit\x00" + line).hexdigest()
