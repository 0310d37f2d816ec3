"""Refusals by a clause of the policy (docs/protocol.md 9)."""

from __future__ import annotations

from protocol.clauses import Clause
from protocol.errors import PolicyRefusal


class OutcomeUnknown(PolicyRefusal):
    """This site has not seen how an earlier round ended; with that evidence it would take part."""


def refusal(clause: Clause, detail: str, told: str | None = None) -> PolicyRefusal:
    """The error that names the clause; ``told`` is its text for others, where that is another one."""
    return PolicyRefusal(clause, detail, told)
