"""Frozen records of studies and rounds: where each stands, and everything signed about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from protocol.messages.control import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    Go,
    OutputCommitment,
    QueryHeader,
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
from protocol.rounds.states import Attempt, RoundKey, RoundProgress

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

    What is None comes with a later state. The properties are for code that runs only from that state on: they say what
    the record has then, and raise IncompleteRecord for a record that has not come so far.
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
    def progress(self) -> RoundProgress:
        return RoundProgress(round=self.key.round, attempt=self.key.attempt, state=self.state)

    @property
    def begun(self) -> Attempt:
        return Attempt(self.key, self.state, self.announcement.message, self.closes_at_s)

    @property
    def agreed(self) -> Signed[AgreedSet]:
        return self._kept(self.agreed_set, "agreed set")

    @property
    def nonce(self) -> bytes:
        return self._kept(self.own_nonce, "nonce of this side")

    @property
    def challenged(self) -> Challenged:
        return Challenged(self.agreed, self._kept(self.transcript, "challenge"))

    @property
    def chosen(self) -> Signed[ReleaseSet]:
        return self._kept(self.release_set, "release set")

    @property
    def mask(self) -> bytes:
        return self._kept(self.mask_seed, "mask")

    @property
    def signed_sum(self) -> Signed[SumRelease]:
        return self._kept(self.sum_release, "signed sum")

    @property
    def committed(self) -> Signed[OutputCommitment]:
        return self._kept(self.commitment, "signed half of the output")

    @property
    def committed_since_s(self) -> float:
        return self._kept(self.committed_at_s, "time of its commitment")

    @property
    def checked(self) -> Signed[TagCheck]:
        return self._kept(self.tag_check, "check of its tags")

    @property
    def seed_of_tags(self) -> bytes:
        return self._kept(self.tag_seed, "seed of its tags")

    @property
    def signed_go(self) -> Signed[Go]:
        return self._kept(self.go, "go")

    @property
    def signed_outcome(self) -> Signed[RoundOutcome]:
        return self._kept(self.outcome, "signed outcome")

    def _kept(self, value: T | None, what: str) -> T:
        if value is None:
            raise IncompleteRecord(
                f"{self.key.label} is {self.state} here and has no {what}, which it must have by now: a server's error"
            )
        return value
