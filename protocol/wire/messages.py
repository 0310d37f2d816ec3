"""Every control message between sites and servers, under one roof; what a server tells its callers is defined here.

``message`` (what all are), ``roster`` (who), ``study`` and ``rule`` (what), ``round`` (one round) hold the others.
"""

from __future__ import annotations

from typing import ClassVar

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
from protocol.wire.ranking import LEAST_PENALTY, MOST_RANKING_ROUNDS, RankingSpec
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
    Purpose,
    QueryHeader,
    Receipt,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    ShareKind,
    WeightList,
)
from protocol.wire.rule import RuleName, RuleSpec, SecondWeight
from protocol.wire.study import (
    MOST_COUNTS_ROUNDS,
    LayerShape,
    ModelSpec,
    ReadyNotice,
    Study,
    StudyEnd,
    StudyEndState,
    StudyProtection,
    StudyState,
    TrainingSpec,
)

__all__ = [
    "LEAST_PENALTY",
    "MAX_CONTROL_BYTES",
    "MOST_COUNTS_ROUNDS",
    "MOST_RANKING_ROUNDS",
    "NO_COMMITMENT",
    "AgreedSet",
    "Announcement",
    "Attempt",
    "ChallengeTranscript",
    "CollectedContribution",
    "ContributionHeader",
    "Decline",
    "Digest",
    "KeyId",
    "LayerShape",
    "ListedWeight",
    "Message",
    "ModelSpec",
    "OpeningHeader",
    "OutputHeader",
    "Party",
    "PartyName",
    "Purpose",
    "QueryHeader",
    "RankingSpec",
    "ReadyNotice",
    "Receipt",
    "ReleaseSet",
    "Role",
    "Roster",
    "RoundNumber",
    "RoundOutcome",
    "RoundState",
    "RoundView",
    "RuleName",
    "RuleSpec",
    "SecondWeight",
    "Secret32",
    "ShareKind",
    "Signature",
    "SignatureHex",
    "Signed",
    "Study",
    "StudyEnd",
    "StudyEndState",
    "StudyList",
    "StudyName",
    "StudyProtection",
    "StudyState",
    "StudyView",
    "TrainingSpec",
    "Version",
    "WeightList",
]


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
