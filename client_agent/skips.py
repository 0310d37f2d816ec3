"""A round that ended without a release, proven by both servers' signatures (docs/protocol.md 9)."""

from __future__ import annotations

from protocol.errors import AnnouncementMismatch
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import Roster, RoundOutcome, RoundState, RoundView, Signed


def require_skip(signed: Signed[RoundOutcome], roster: Roster, study_digest: str, round_number: int) -> RoundOutcome:
    """The skip of this study's round that both servers signed.

    Raises: BadSignature, AnnouncementMismatch
    """
    outcome = require_signatures(signed, roster, (roster.operator_a.name, roster.operator_b.name))
    named = (outcome.study_digest, outcome.round, outcome.outcome)
    if named != (study_digest, round_number, RoundState.SKIPPED):
        raise AnnouncementMismatch(
            f"round {round_number}: what the servers signed is no skip of this study's round {round_number}"
        )
    return outcome


def shown_skip(a: RoundView, b: RoundView, roster: Roster, study_digest: str) -> Signed[RoundOutcome] | None:
    """The skip with both signatures, whichever view carries it; None while neither does.

    Raises: BadSignature, AnnouncementMismatch
    """
    operators = (roster.operator_a.name, roster.operator_b.name)
    for view in (a, b):
        outcome = view.outcome
        if outcome is not None and all(outcome.signature_of(name) is not None for name in operators):
            require_skip(outcome, roster, study_digest, view.round)
            return outcome
    return None
