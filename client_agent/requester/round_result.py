"""The result of a round, as the requester sees it (docs/protocol.md 8, 9)."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.site.events import RoundEnd
from protocol.errors import Clause, ErrorCode
from protocol.messages.control import RoundOutcome, Signed
from protocol.rounds.evidence import PastRelease
from protocol.rules.interface import Measured


@dataclass(frozen=True)
class Refused:
    """A site that declined, and why; ``reason`` is for people."""

    site: str
    code: ErrorCode
    clause: Clause | None
    reason: str

    @property
    def passes(self) -> bool:
        """True if the site would take part with evidence or a model that it lacks."""
        return self.clause is not None and self.clause.passes


@dataclass(frozen=True)
class Settled:
    """The end of a round. ``past`` is set when a sum was released, ``measured`` when the rule can be applied.

    ``skip`` is set when the round was skipped, with both servers' signatures. ``failed_check`` are agreed sites that
    failed one in a round that sums nothing, or whose tags were wrong; the release set of any other names them.
    ``server_lied``: the servers' words about tags do not fit each other.
    """

    end: RoundEnd
    attempt: int
    reason: str
    declines: tuple[Refused, ...]
    clipped: bool | None
    requester_norm: float | None
    past: PastRelease | None = None
    measured: Measured | None = None
    skip: Signed[RoundOutcome] | None = None
    failed_check: tuple[str, ...] = ()
    server_lied: bool = False
