"""A round that ended without a release, proven by both servers' signatures (docs/protocol.md 9)."""

from __future__ import annotations

from protocol.errors import AnnouncementMismatch
from protocol.messages.control import Roster, RoundOutcome, RoundState, RoundView, Signed, require_signatures


def require_skip(signed: Signed[RoundOutcome], roster: Roster, study_digest: str, round_number: int) -> RoundOutcome:
    """The skip of this study's round that both servers signed.

    Raises: BadSignature, AnnouncementMismatch
    """
    return require_outcome(signed, roster, study_digest, round_number, RoundState.SKIPPED)


def require_outcome(
    signed: Signed[RoundOutcome], roster: Roster, study_digest: str, round_number: int, state: RoundState
) -> RoundOutcome:
    """That this study's round is skipped, ranked or closed, as both servers signed.

    Raises: BadSignature, AnnouncementMismatch
    """
    outcome = require_signatures(signed, roster, (roster.operator_a.name, roster.operator_b.name))
    named = (outcome.study_digest, outcome.round, outcome.outcome)
    if named != (study_digest, round_number, state):
        raise AnnouncementMismatch(
            f"round {round_number}: what the servers signed does not say that this study's round {round_number} is "
            f"{state.value}"
        )
    return outcome


def shown_outcome(
    a: RoundView, b: RoundView, roster: Roster, study_digest: str, state: RoundState = RoundState.SKIPPED
) -> Signed[RoundOutcome] | None:
    """The skip (or a ranking's end, or a measurement's) with both signatures, whichever view carries it; else None.

    Raises: BadSignature, AnnouncementMismatch
    """
    operators = (roster.operator_a.name, roster.operator_b.name)
    for view in (a, b):
        outcome = view.outcome
        if outcome is not None and all(outcome.signature_of(name) is not None for name in operators):
            require_outcome(outcome, roster, study_digest, view.round, state)
            return outcome
    return None
