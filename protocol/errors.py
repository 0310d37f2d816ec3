"""One tree of every error that the project raises on purpose, and the clauses that a refusal names.

    MoietyError
    ├── ConfigurationError          a file, option or key on this machine is wrong: fix it and start again
    ├── UnusableUpdate              a site's own update or model cannot be shared (NaN, shape, buffers)
    ├── PolicyRefusal               a site declines a study, weight list or model: ``clause`` says which demand broke
    │   └── OutcomeUnknown          the site has not seen how an earlier round ended: it takes part once it has
    ├── LocalOptimumReached         ||g_0|| = 0 leaves the relative distance undefined
    ├── RefusedMessage              the other party's message is refused at the edge; nothing was changed
    │   ├── MalformedMessage        not the agreed format, version, length or range
    │   ├── UnknownStudy, UnknownParty, NotListed, UnknownResource, OutputGone
    │   ├── BadSignature            missing, wrong, incomplete, expired, future-dated or replayed
    │   ├── BrokenSeal              sealed to another key, truncated, reordered or altered
    │   ├── CommitmentMismatch      the share is not the one that was committed to
    │   ├── WrongRound              the round, attempt or state does not take this message (any more)
    │   ├── AnnouncementMismatch    bound to another announcement, model or weight list
    │   ├── RosterUnknown           it names a link of the roster that is not known here (yet): wait, or fetch it
    │   ├── RosterRefused           a roster that does not continue the one known here
    │   ├── ConflictingMessage      the same id came before with other bytes
    │   └── TooLarge
    ├── ProtocolViolation           a peer (or a bug) broke the protocol: the round or session ends
    │   ├── ConsistencyCheckFailed  the OT extension's receiver used inconsistent choice bits
    │   ├── CorrelationReused       a correlation may serve one product, ever
    │   ├── TranscriptMismatch      the two servers say different things
    │   ├── ShareAltered            a stored share is not what was received: a disk's fault, or somebody wrote to it
    │   ├── AggregateOutOfBounds    the opened sum breaks its coordinate bound: model left unchanged
    │   │   ├── SumForged           a sum of ciphertexts is not that of the released sites
    │   │   └── SumAltered          a sum's tags are wrong, against what a server signed; it names the server
    │   └── ModelDiverged           the model digest differs from the announced one
    └── Unavailable                 try again later
        ├── StorageFull
        ├── PeerUnreachable
        ├── RolledBack              an older database was put back: its server goes on once its operator has seen to it
        ├── HistoryUnknown          the servers have not compared how far they came since one of them started
        ├── SessionUnknown          the session that a request came in is over: ask in an envelope, or open another
        └── OtherVersion            the other party speaks another version of the protocol: wait, say what to install

Every error carries a stable ``code``, a ``detail`` (what was found, what is allowed, what to do) and no secret.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.text import printable_lines


class Clause(StrEnum):
    """The demand that a study, a round or a model broke."""

    SAME_ROUND = "same_round"
    ANNOUNCED_SITES = "announced_sites"
    CONTRIBUTORS_ONLY = "contributors_only"
    GRID = "grid"
    LEAST_NUMBER = "least_number"
    ENOUGH_CONTRIBUTORS = "enough_contributors"
    LARGEST_SHARE = "largest_share"
    NEVER_RISES = "never_rises"
    MODEL_VERSION = "model_version"
    MODEL_BEHIND = "model_behind"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SAME_SUM_AGAIN = "same_sum_again"
    MEASURED_FOR_NOTHING = "measured_for_nothing"
    MAY_OPEN = "may_open"
    ALLOW_CKKS = "allow_ckks"
    DISCARDED_SUMS = "discarded_sums"
    ALTERED_SUM = "altered_sum"
    MEASURED_TWICE = "measured_twice"
    COUNTED_ONCE = "counted_once"
    COHORT = "cohort"
    QUESTION = "question"
    MAY_RANK = "may_rank"
    RANKED_ONCE = "ranked_once"
    MAY_SUMMARISE = "may_summarise"
    SUMMARISED_ONCE = "summarised_once"
    SECOND_MOMENTS = "second_moments"
    RANKING_PENALTY = "ranking_penalty"
    LEFT_OUT_TWICE = "left_out_twice"
    ISOLATION = "isolation"
    MEMORY_UNRECONCILED = "memory_unreconciled"
    LARGEST_STEP = "largest_step"
    LARGEST_PATH = "largest_path"
    MAY_PRETRAIN = "may_pretrain"
    FIRST_MODEL = "first_model"
    NOISE = "noise"
    BUDGET_SPENT = "budget_spent"
    BUDGET_UNRECONCILED = "budget_unreconciled"
    LEFT = "left"
    PAUSED = "paused"
    KEYS_RENEWED = "keys_renewed"
    QUIET_HOURS = "quiet_hours"

    @property
    def passes(self) -> bool:
        """True if the refusal may pass: the site lacks a release, its evidence or a receipt, asks for another list, or
        waits.
        """
        return self in _PASSING


_PASSING: Final = frozenset(
    {
        Clause.MODEL_BEHIND,
        Clause.OUTCOME_UNKNOWN,
        Clause.MEMORY_UNRECONCILED,
        Clause.BUDGET_UNRECONCILED,
        Clause.ISOLATION,
        Clause.PAUSED,
        Clause.KEYS_RENEWED,
        Clause.QUIET_HOURS,
    }
)


class ErrorCode(StrEnum):
    CONFIGURATION = "configuration"
    UNUSABLE_UPDATE = "unusable_update"
    POLICY_REFUSAL = "policy_refusal"
    LOCAL_OPTIMUM = "local_optimum"
    MALFORMED_MESSAGE = "malformed_message"
    UNKNOWN_STUDY = "unknown_study"
    UNKNOWN_PARTY = "unknown_party"
    NOT_LISTED = "not_listed"
    UNKNOWN_RESOURCE = "unknown_resource"
    OUTPUT_GONE = "output_gone"
    BAD_SIGNATURE = "bad_signature"
    BROKEN_SEAL = "broken_seal"
    COMMITMENT_MISMATCH = "commitment_mismatch"
    WRONG_ROUND = "wrong_round"
    ANNOUNCEMENT_MISMATCH = "announcement_mismatch"
    ROSTER_UNKNOWN = "roster_unknown"
    ROSTER_REFUSED = "roster_refused"
    CONFLICTING_MESSAGE = "conflicting_message"
    TOO_LARGE = "too_large"
    CONSISTENCY_CHECK_FAILED = "consistency_check_failed"
    CORRELATION_REUSED = "correlation_reused"
    TRANSCRIPT_MISMATCH = "transcript_mismatch"
    AGGREGATE_OUT_OF_BOUNDS = "aggregate_out_of_bounds"
    SHARE_ALTERED = "share_altered"
    SUM_FORGED = "sum_forged"
    SUM_ALTERED = "sum_altered"
    MODEL_DIVERGED = "model_diverged"
    PROTOCOL_VIOLATION = "protocol_violation"
    UNAVAILABLE = "unavailable"
    STORAGE_FULL = "storage_full"
    PEER_UNREACHABLE = "peer_unreachable"
    OTHER_VERSION = "other_version"
    ROLLED_BACK = "rolled_back"
    HISTORY_UNKNOWN = "history_unknown"
    SESSION_UNKNOWN = "session_unknown"


class MoietyError(Exception):
    """Base of all; ``detail`` is safe to show to the person whose request or file caused it.

    Details quote what was found, and so other parties' words: they are made printable here, once for every place in
    which an error ends.
    """

    code: ErrorCode

    def __init__(self, detail: str) -> None:
        self.detail = printable_lines(detail)
        super().__init__(self.detail)


class ConfigurationError(MoietyError):
    code = ErrorCode.CONFIGURATION


class UnusableUpdate(MoietyError):
    code = ErrorCode.UNUSABLE_UPDATE


class PolicyRefusal(MoietyError):
    """``clause`` is the demand that broke; ``told`` the text for others, without what only this site may know."""

    code = ErrorCode.POLICY_REFUSAL

    def __init__(self, clause: Clause, detail: str, told: str | None = None) -> None:
        super().__init__(f"{clause.value}: {detail}")
        self.clause = clause
        self.told = self.detail if told is None else f"{clause.value}: {told}"


class LocalOptimumReached(MoietyError):
    code = ErrorCode.LOCAL_OPTIMUM


class RefusedMessage(MoietyError):
    code = ErrorCode.MALFORMED_MESSAGE


class MalformedMessage(RefusedMessage):
    code = ErrorCode.MALFORMED_MESSAGE


class UnknownStudy(RefusedMessage):
    code = ErrorCode.UNKNOWN_STUDY


class UnknownParty(RefusedMessage):
    code = ErrorCode.UNKNOWN_PARTY


class NotListed(RefusedMessage):
    code = ErrorCode.NOT_LISTED


class UnknownResource(RefusedMessage):
    code = ErrorCode.UNKNOWN_RESOURCE


class OutputGone(RefusedMessage):
    """The server does not keep this sum any more, and will never serve it again."""

    code = ErrorCode.OUTPUT_GONE


class BadSignature(RefusedMessage):
    code = ErrorCode.BAD_SIGNATURE


class BrokenSeal(RefusedMessage):
    code = ErrorCode.BROKEN_SEAL


class CommitmentMismatch(RefusedMessage):
    code = ErrorCode.COMMITMENT_MISMATCH


class WrongRound(RefusedMessage):
    code = ErrorCode.WRONG_ROUND


class AnnouncementMismatch(RefusedMessage):
    code = ErrorCode.ANNOUNCEMENT_MISMATCH


class RosterUnknown(RefusedMessage):
    """A link of the roster that is not known here yet: whoever sent it waits and sends it again."""

    code = ErrorCode.ROSTER_UNKNOWN


class RosterRefused(RefusedMessage):
    """A roster that does not continue the one known here: a fork, an older one, or a change that is not allowed."""

    code = ErrorCode.ROSTER_REFUSED


class ConflictingMessage(RefusedMessage):
    code = ErrorCode.CONFLICTING_MESSAGE


class TooLarge(RefusedMessage):
    code = ErrorCode.TOO_LARGE


class ProtocolViolation(MoietyError):
    code = ErrorCode.PROTOCOL_VIOLATION


class ConsistencyCheckFailed(ProtocolViolation):
    code = ErrorCode.CONSISTENCY_CHECK_FAILED


class CorrelationReused(ProtocolViolation):
    code = ErrorCode.CORRELATION_REUSED


class TranscriptMismatch(ProtocolViolation):
    code = ErrorCode.TRANSCRIPT_MISMATCH


class ShareAltered(ProtocolViolation):
    """A stored share was cut, altered or deleted on a server's disk; ``detail`` quotes its site, or its file."""

    code = ErrorCode.SHARE_ALTERED

    def is_of(self, name: str) -> bool:
        """Tell whether the share is that of this site, or in this file."""
        return f"{name!r}" in self.detail


class AggregateOutOfBounds(ProtocolViolation):
    code = ErrorCode.AGGREGATE_OUT_OF_BOUNDS


class SumForged(AggregateOutOfBounds):
    code = ErrorCode.SUM_FORGED


class SumAltered(AggregateOutOfBounds):
    """The tags of an opened sum are wrong; ``sides`` signed otherwise, "a" or "b"."""

    code = ErrorCode.SUM_ALTERED

    def __init__(self, detail: str, sides: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.sides = sides


class ModelDiverged(ProtocolViolation):
    code = ErrorCode.MODEL_DIVERGED


class Unavailable(MoietyError):
    """Not now. ``asked_pause_s``: how long whoever said so asks to wait, where it does; nobody vouches for that."""

    code = ErrorCode.UNAVAILABLE
    asked_pause_s: float | None = None


class StorageFull(Unavailable):
    code = ErrorCode.STORAGE_FULL


class PeerUnreachable(Unavailable):
    code = ErrorCode.PEER_UNREACHABLE


class OtherVersion(Unavailable):
    code = ErrorCode.OTHER_VERSION


class RolledBack(Unavailable):
    """A server knows less than it has signed, or a study began before a server's older database was put back."""

    code = ErrorCode.ROLLED_BACK


class HistoryUnknown(Unavailable):
    """Side A tells its history first, then asks again."""

    code = ErrorCode.HISTORY_UNKNOWN


class SessionUnknown(Unavailable):
    """The request came in a session that there is not, or not any more."""

    code = ErrorCode.SESSION_UNKNOWN


class OutcomeUnknown(PolicyRefusal):
    """This site has not seen how an earlier round ended; with that evidence it would take part."""
