"""Every control message between sites and servers, under one roof; what a server tells its callers is defined here.

``message`` (what all are), ``roster`` (who), ``study`` and ``rule`` (what), ``round`` (one round) hold the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.protection.plan import StudyProtection
from protocol.purpose import Purpose, RoundState
from protocol.rules.weight_erosion import SecondWeight
from protocol.wire.causes import EndCause, OutcomeCause
from protocol.wire.chain.change import KeyClaim, RosterChange
from protocol.wire.message import (
    MAX_CONTROL_BYTES,
    Attempt,
    Digest,
    KeyId,
    Message,
    PartyName,
    RoundNumber,
    Secret32,
    Signature,
    SignatureHex,
    Signed,
    StudyName,
    Version,
)
from protocol.wire.roster import Party, Role, Roster
from protocol.wire.round import (
    NO_COMMITMENT,
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    ContributionHeader,
    Decline,
    ListedWeight,
    OpeningHeader,
    OutputHeader,
    QueryHeader,
    Receipt,
    ReleaseSet,
    RoundOutcome,
    ShareKind,
    SumRelease,
    WeightList,
)
from protocol.wire.studies.model import LayerShape, ModelSpec, TrainingSpec
from protocol.wire.studies.privacy import MOST_NOISE, PrivacySpec
from protocol.wire.studies.ranking import LEAST_PENALTY, MOST_RANKING_ROUNDS, RankingSpec
from protocol.wire.studies.rule import RuleName, RuleSpec
from protocol.wire.studies.study import (
    MOST_COUNTS_ROUNDS,
    ReadyNotice,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
)
from protocol.wire.studies.summary import LEAST_EXAMPLES, MOST_SUMMARY_ROUNDS, SummarySpec
from protocol.wire.table.column import ColumnRole, ColumnSpec, ColumnType, LimitRule, MissingRule
from protocol.wire.table.schema import Scaling, SplitOrder, SplitSpec, TableSchema
from protocol.wire.tags import Go, HalvesChecked, OutputCommitment, TagCheck, TagSeed, TagsFailed, TagShares
from protocol.wire.task import LossName, TaskKind, TaskSpec

__all__ = [
    "LEAST_EXAMPLES",
    "LEAST_PENALTY",
    "MAX_CONTROL_BYTES",
    "MOST_COUNTS_ROUNDS",
    "MOST_NOISE",
    "MOST_RANKING_ROUNDS",
    "MOST_SUMMARY_ROUNDS",
    "NO_COMMITMENT",
    "AgreedSet",
    "Announcement",
    "Attempt",
    "ChallengeTranscript",
    "CollectedContribution",
    "ColumnRole",
    "ColumnSpec",
    "ColumnType",
    "ContributedRound",
    "ContributedRounds",
    "ContributionHeader",
    "Decline",
    "Digest",
    "EndCause",
    "Go",
    "HalvesChecked",
    "KeyClaim",
    "KeyId",
    "LayerShape",
    "LimitRule",
    "ListedStudy",
    "ListedWeight",
    "LossName",
    "Message",
    "MissingRule",
    "ModelSpec",
    "OpeningHeader",
    "OutcomeCause",
    "OutputCommitment",
    "OutputHeader",
    "Party",
    "PartyName",
    "PauseCause",
    "PauseNotice",
    "PrivacySpec",
    "Purpose",
    "QueryHeader",
    "RankingSpec",
    "ReadyNotice",
    "Receipt",
    "ReleaseSet",
    "Role",
    "Roster",
    "RosterChange",
    "RoundNumber",
    "RoundOutcome",
    "RoundState",
    "RoundView",
    "RuleName",
    "RuleSpec",
    "Scaling",
    "SecondWeight",
    "Secret32",
    "ShareKind",
    "Signature",
    "SignatureHex",
    "Signed",
    "SplitOrder",
    "SplitSpec",
    "Study",
    "StudyEnd",
    "StudyEndState",
    "StudyIndex",
    "StudyName",
    "StudyProtection",
    "StudyState",
    "StudyView",
    "SumRelease",
    "SummarySpec",
    "TableSchema",
    "TagCheck",
    "TagSeed",
    "TagShares",
    "TagsFailed",
    "TaskKind",
    "TaskSpec",
    "TrainingSpec",
    "Version",
    "WeightList",
]


class RoundView(Message):
    """One server's view of the current round, as served to the study's sites.

    ``commitment`` is this server's own, in a round with tags; ``go`` is there once this server serves its half.
    """

    KIND: ClassVar[str] = "round_view"
    round: RoundNumber
    attempt: Attempt
    state: RoundState
    announcement: Signed[Announcement]
    agreed_set: Signed[AgreedSet] | None = None
    transcript: Signed[ChallengeTranscript] | None = None
    release_set: Signed[ReleaseSet] | None = None
    sum_release: Signed[SumRelease] | None = None
    outcome: Signed[RoundOutcome] | None = None
    commitment: Signed[OutputCommitment] | None = Field(default=None, exclude_if=lambda found: found is None)
    go: Signed[Go] | None = Field(default=None, exclude_if=lambda found: found is None)


class PauseCause(StrEnum):
    """Why a server waits for the requester before the study goes on."""

    REQUESTER_AWAY = "requester_away"
    REQUESTER_SILENT = "requester_silent"
    SERVER_RESTORED = "server_restored"


class PauseNotice(Message):
    """A study waits, after so many skips in a row or a long silence; the requester's next announcement resumes it.

    After a server was restored from an older database nothing resumes it: the requester cancels it.
    """

    KIND: ClassVar[str] = "pause"
    cause: PauseCause
    skips: Annotated[int, Field(ge=1)]

    @property
    def reason(self) -> str:
        """In words, for people."""
        if self.cause is PauseCause.SERVER_RESTORED:
            return (
                "a server was restored from an older database and may not know what this study did; its requester "
                "cancels it and creates it anew under another name"
            )
        if self.cause is PauseCause.REQUESTER_SILENT:
            return "the requester has announced no round for long; its next announcement resumes the study"
        return (
            f"{self.skips} rounds in a row were skipped because the requester was away; its next announcement "
            "resumes the study"
        )


class StudyView(Message):
    """One server's view of a study. ``cursor`` grows with every change: pass it back to wait for the next.

    A study has ended when its requester says so, over its signature: ``end`` is that statement, and nothing else in a
    view ends anything. ``pause`` is this server's own. ``roster_changes``: how many links its roster has after the
    first, which whoever has fewer can fetch (docs/protocol.md 20).
    """

    KIND: ClassVar[str] = "study_view"
    study: StudyName
    study_digest: Digest
    end: Signed[StudyEnd] | None = None
    pause: PauseNotice | None = None
    cursor: int
    ready: tuple[PartyName, ...]
    mail: tuple[str, ...]
    current: RoundView | None = None
    roster_changes: int = Field(default=0, ge=0, exclude_if=lambda found: found == 0)

    @property
    def state(self) -> StudyState:
        """The server's word for the state of the study; whoever acts on an end checks its signature first."""
        if self.end is not None:
            return StudyState(self.end.message.state.value)
        return StudyState.OPEN if self.pause is None else StudyState.PAUSED

    @property
    def reason(self) -> str:
        """Why it is paused or ended, for people."""
        if self.end is not None:
            return self.end.message.reason
        return "" if self.pause is None else self.pause.reason


class ContributedRound(Message):
    """A round of updates for which a server has a site's receipt, and which was not skipped."""

    KIND: ClassVar[str] = "contributed_round"
    study: StudyName
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    body_digest: Digest


class ContributedRounds(Message):
    """A page of them, in the order of studies' digests and rounds; signed, over the ``nonce`` of who asked."""

    KIND: ClassVar[str] = "contributed_rounds"
    site: PartyName
    nonce: Digest
    rounds: tuple[ContributedRound, ...]
    more: bool


class HeldUpload(Message):
    """The bytes that a server durably has of the sealed message with this digest.

    The next part may have ``part_bytes``.
    """

    KIND: ClassVar[str] = "held_upload"
    body_digest: Digest
    held_bytes: Annotated[int, Field(ge=0, le=2**40)]
    part_bytes: Annotated[int, Field(ge=2**10, le=2**26)]


class ListedStudy(Message):
    """A study by its name, and the digest by which its content is known."""

    KIND: ClassVar[str] = "listed_study"
    name: StudyName
    study_digest: Digest


class StudyIndex(Message):
    """One page of the studies whose roster holds the caller, by name; with ``more``, ask after the last one's name.

    The digest of a whole index says which one a caller knows: ``unchanged`` is the answer while it is still that one.
    ``roster_changes`` as in a view.
    """

    KIND: ClassVar[str] = "study_index"
    studies: tuple[ListedStudy, ...]
    more: bool = False
    unchanged: bool = False
    roster_changes: int = Field(default=0, ge=0, exclude_if=lambda found: found == 0)
