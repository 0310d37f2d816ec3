"""Every error that the project raises on purpose, and the clauses that a refusal names.

An error carries a stable ``code``, a ``detail`` (what was found, what is allowed, what to do) and no secret.
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


CLASS_OF_CODE: Final[dict[str, type[MoietyError]]] = {}


class MoietyError(Exception):
    """Base of all; ``detail`` is safe to show to the person whose request or file caused it.

    Details quote what was found, and so other parties' words: they are made printable here, once for every place in
    which an error ends.
    """

    code: ErrorCode

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        """Make ``cls`` the class that ``code`` stands for; without one it has its parent's."""
        if code is not None:
            cls.code = code
            CLASS_OF_CODE[code] = cls

    def __init__(self, detail: str) -> None:
        self.detail = printable_lines(detail)
        super().__init__(self.detail)


class ConfigurationError(MoietyError, code=ErrorCode.CONFIGURATION):
    """A file, option or key on this machine is wrong: fix it and start again."""


class UnusableUpdate(MoietyError, code=ErrorCode.UNUSABLE_UPDATE):
    """A site's own update or model cannot be shared (NaN, shape, buffers)."""


class PolicyRefusal(MoietyError, code=ErrorCode.POLICY_REFUSAL):
    """A site declines a study, weight list or model.

    ``clause`` is the demand that broke; ``told`` the text for others, without what only this site may know.
    """

    def __init__(self, clause: Clause, detail: str, told: str | None = None) -> None:
        super().__init__(f"{clause.value}: {detail}")
        self.clause = clause
        self.told = self.detail if told is None else f"{clause.value}: {told}"


class OutcomeUnknown(PolicyRefusal):
    """This site has not seen how an earlier round ended; with that evidence it would take part."""


class LocalOptimumReached(MoietyError, code=ErrorCode.LOCAL_OPTIMUM):
    """||g_0|| = 0 leaves the relative distance undefined."""


class RefusedMessage(MoietyError, code=ErrorCode.MALFORMED_MESSAGE):
    """The other party's message is refused at the edge; nothing was changed."""


class MalformedMessage(RefusedMessage, code=ErrorCode.MALFORMED_MESSAGE):
    """The message has not the agreed format, version, length or range."""


class UnknownStudy(RefusedMessage, code=ErrorCode.UNKNOWN_STUDY): ...


class UnknownParty(RefusedMessage, code=ErrorCode.UNKNOWN_PARTY): ...


class NotListed(RefusedMessage, code=ErrorCode.NOT_LISTED): ...


class UnknownResource(RefusedMessage, code=ErrorCode.UNKNOWN_RESOURCE): ...


class OutputGone(RefusedMessage, code=ErrorCode.OUTPUT_GONE):
    """The server does not keep this sum any more, and will never serve it again."""


class BadSignature(RefusedMessage, code=ErrorCode.BAD_SIGNATURE):
    """A signature is missing, wrong, incomplete, expired, future-dated or replayed."""


class BrokenSeal(RefusedMessage, code=ErrorCode.BROKEN_SEAL):
    """The message was sealed to another key, truncated, reordered or altered."""


class CommitmentMismatch(RefusedMessage, code=ErrorCode.COMMITMENT_MISMATCH):
    """The share is not the one that was committed to."""


class WrongRound(RefusedMessage, code=ErrorCode.WRONG_ROUND):
    """The round, attempt or state does not take this message (any more)."""


class AnnouncementMismatch(RefusedMessage, code=ErrorCode.ANNOUNCEMENT_MISMATCH):
    """The message is bound to another announcement, model or weight list."""


class RosterUnknown(RefusedMessage, code=ErrorCode.ROSTER_UNKNOWN):
    """The message names a link of the roster that is not known here yet: its sender waits and sends it again."""


class RosterRefused(RefusedMessage, code=ErrorCode.ROSTER_REFUSED):
    """A roster that does not continue the one known here: a fork, an older one, or a change that is not allowed."""


class ConflictingMessage(RefusedMessage, code=ErrorCode.CONFLICTING_MESSAGE):
    """The same id came before with other bytes."""


class TooLarge(RefusedMessage, code=ErrorCode.TOO_LARGE): ...


class ProtocolViolation(MoietyError, code=ErrorCode.PROTOCOL_VIOLATION):
    """A peer (or a bug) broke the protocol: the round or session ends."""


class ConsistencyCheckFailed(ProtocolViolation, code=ErrorCode.CONSISTENCY_CHECK_FAILED):
    """The OT extension's receiver used inconsistent choice bits."""


class CorrelationReused(ProtocolViolation, code=ErrorCode.CORRELATION_REUSED):
    """A correlation may serve one product, ever."""


class TranscriptMismatch(ProtocolViolation, code=ErrorCode.TRANSCRIPT_MISMATCH):
    """The two servers say different things."""


class ShareAltered(ProtocolViolation, code=ErrorCode.SHARE_ALTERED):
    """A stored share was cut, altered or deleted on a server's disk; ``detail`` quotes its site, or its file."""

    def is_of(self, name: str) -> bool:
        """Tell whether the share is that of this site, or in this file."""
        return f"{name!r}" in self.detail


class AggregateOutOfBounds(ProtocolViolation, code=ErrorCode.AGGREGATE_OUT_OF_BOUNDS):
    """The opened sum breaks its coordinate bound: the model is left unchanged."""


class SumForged(AggregateOutOfBounds, code=ErrorCode.SUM_FORGED):
    """A sum of ciphertexts is not that of the released sites."""


class SumAltered(AggregateOutOfBounds, code=ErrorCode.SUM_ALTERED):
    """The tags of an opened sum are wrong; ``sides`` signed otherwise, "a" or "b"."""

    def __init__(self, detail: str, sides: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.sides = sides


class ModelDiverged(ProtocolViolation, code=ErrorCode.MODEL_DIVERGED):
    """The model's digest differs from the announced one."""


class Unavailable(MoietyError, code=ErrorCode.UNAVAILABLE):
    """Not now. ``asked_pause_s``: how long whoever said so asks to wait, where it does; nobody vouches for that."""

    asked_pause_s: float | None = None


class StorageFull(Unavailable, code=ErrorCode.STORAGE_FULL): ...


class PeerUnreachable(Unavailable, code=ErrorCode.PEER_UNREACHABLE): ...


class OtherVersion(Unavailable, code=ErrorCode.OTHER_VERSION):
    """The other party speaks another version of the protocol: wait, and say what to install."""


class RolledBack(Unavailable, code=ErrorCode.ROLLED_BACK):
    """A server knows less than it has signed, or a study began before a server's older database was put back."""


class HistoryUnknown(Unavailable, code=ErrorCode.HISTORY_UNKNOWN):
    """The servers have not compared how far they came since one of them started: side A does, then asks again."""


class SessionUnknown(Unavailable, code=ErrorCode.SESSION_UNKNOWN):
    """The session that a request came in is over: ask in an envelope, or open another."""


def error_of(code: str, detail: str) -> MoietyError:
    """The error that another party names by its code.

    MalformedMessage for an unknown code, and for a refusal by a policy: only the site itself has the clause.
    """
    kind = CLASS_OF_CODE.get(code, MalformedMessage)
    return MalformedMessage(detail) if issubclass(kind, PolicyRefusal) else kind(detail)
