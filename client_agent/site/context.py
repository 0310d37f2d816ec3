"""One site's means, shared by all of its studies, and its memories compared with the servers' receipts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from client_agent.learning.learner import Learner, TorchLearner
from client_agent.net.ledger import Ledger
from client_agent.net.quiet_hours import NO_QUIET_HOURS, QuietHours
from client_agent.net.roster import HeldRoster
from client_agent.net.server_client import ServerClient
from client_agent.settings import AgentSettings
from client_agent.site.events import EventSink
from client_agent.site.notifications import Notice
from client_agent.site.privacy_budget import BudgetMemory, budget_memory
from client_agent.site.sum_memory import CohortMemory, SumMemory, cohort_memory, sum_memory
from host.clock import SYSTEM, Clock
from host.randomness import Randomness, SystemRandomness
from protocol.errors import Clause, PolicyRefusal, TranscriptMismatch
from protocol.messages.control import ContributedRound, ContributedRounds, Roster, Study, require_signatures
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

RELAY = Side.A
"""The server that carries the sites' mail."""
LearnerFactory = Callable[[Study, int], Learner]


@dataclass(frozen=True)
class SiteContext:
    """One site's means, shared by all of its studies. ``asks_people``: whether a person approves each study here.

    ``transfer_remarks``: what this site's cap and quiet hours will do to a study's rounds, in words.
    """

    site: str
    keys: PartyKeys = field(repr=False)
    held: HeldRoster
    clients: Mapping[Side, ServerClient]
    randomness: Randomness
    state_dir: Path
    policy: SitePolicy
    make_learner: LearnerFactory
    training_seed: Callable[[Study], int]
    emit: EventSink
    ledger: Ledger
    stop: threading.Event
    asks_people: bool
    data: Path = Path()
    start_when: int | None = None
    stuck_after_s: float = 259_200.0
    bootstrap_samples: int = 0
    clock: Clock = SYSTEM
    quiet: QuietHours = NO_QUIET_HOURS
    transfer_remarks: Callable[[Study], tuple[str, ...]] = lambda study: ()
    tell_people: Callable[[Notice], None] = lambda notice: None

    @property
    def roster(self) -> Roster:
        """The newest that this site holds."""
        return self.held.head

    @property
    def came_with(self) -> str:
        """The signing key that names this site in its own memories and in those of others."""
        return self.held.name_of(self.site)

    def pause(self, seconds: float) -> bool:
        """Wait; return whether the agent was stopped meanwhile."""
        return self.clock.wait(self.stop, seconds)

    @cached_property
    def sums(self) -> SumMemory:
        """The memory of sums of this site's key; made before studies run side by side."""
        return sum_memory(self.state_dir, self.came_with, partial(self.randomness.bytes, 32, "sketch of updates"))

    @cached_property
    def cohorts(self) -> CohortMemory:
        """Over whom this site's data were summed as they are; made before studies run side by side."""
        return cohort_memory(self.state_dir, self.came_with, partial(self.randomness.bytes, 32, "rounding of counts"))

    @cached_property
    def budget(self) -> BudgetMemory:
        """The spent privacy budget of this site's key; made before studies run side by side."""
        return budget_memory(self.state_dir, self.came_with)


MOST_LOST: Final = 100_000
"""Two rounds an hour for five years; 140 MB while they are compared."""
_NAMED: Final = 5
_AGAIN_AFTER_S: Final = 300.0
_PUT_BACK: Final = (
    "an older copy of the state folder was put back, a part of it was lost, or another agent has this key"
)


def reconcile(context: SiteContext) -> None:
    """Before the first contribution and now and then: this site remembers every sum that a server saw it in.

    Again, because another agent may run with the same key and another state folder, and neither sees the other's sums.
    A server that names rounds that never were keeps the site from contributing, which it can do anyway.
    Raises: Unavailable while one of them cannot be reached; PolicyRefusal, clause ``memory_unreconciled``
    """
    now_s, last_s = context.clock.now(), context.sums.reconciled_at_s
    if last_s is not None and abs(now_s - last_s) < _AGAIN_AFTER_S:
        return
    lost = lost_rounds(context.sums, context.clients, context.roster, context.site)
    if lost:
        names = ", ".join(f"{found.study} round {found.round}" for found in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        what = f"this site's memory of sums lacks {len(lost)} rounds that the servers have its receipts for"
        advice = (
            "stop the agent, restore the newest backup of its state folder, and run no other agent with this key; if "
            "there is no backup, read docs/joining.md and then run: moiety agent accept-rollback"
        )
        raise PolicyRefusal(Clause.MEMORY_UNRECONCILED, f"{what}: {names}{more}; {_PUT_BACK}; {advice}", what)
    context.sums.reconciled_at_s = now_s


def reconcile_budget(context: SiteContext) -> None:
    """With a budget: every round that a server has this site's receipt for is in its count. As often as the sums.

    So a count that was deleted or put back spends nothing twice. Raises: Unavailable while one of them cannot be
    reached; PolicyRefusal, clause ``budget_unreconciled``
    """
    now_s, last_s = context.clock.now(), context.budget.reconciled_at_s
    if context.policy.epsilon is None or (last_s is not None and abs(now_s - last_s) < _AGAIN_AFTER_S):
        return
    lost = lost_rounds(context.budget, context.clients, context.roster, context.site)
    if lost:
        names = ", ".join(f"{found.study} round {found.round}" for found in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        what = f"this site's count of its privacy budget lacks {len(lost)} rounds that servers have its receipts for"
        advice = (
            "stop the agent and restore the newest backup of its state folder; where these rounds had no noise, "
            "or there is no backup, read docs/joining.md and then run: moiety agent accept-rollback"
        )
        raise PolicyRefusal(Clause.BUDGET_UNRECONCILED, f"{what}: {names}{more}; {advice}", what)
    context.budget.reconciled_at_s = now_s


class Remembering(Protocol):
    """A memory of rounds in which this site contributed."""

    def rounds(self) -> frozenset[tuple[str, int]]: ...


def lost_rounds(
    memory: Remembering, clients: Mapping[Side, ServerClient], roster: Roster, site: str
) -> tuple[ContributedRound, ...]:
    """Rounds of updates for which a server has this site's receipt, and of which the memory knows nothing.

    What a server can make this site hold is bounded: each round that the memory knows is named once, as its pages are
    in order, and ``MOST_LOST`` that it does not know.
    Raises: Unavailable; BadSignature and TranscriptMismatch, when an answer is not this server's to this question, is
            out of order, or names more
    """
    before, found = memory.rounds(), dict[tuple[str, int], ContributedRound]()
    for side in Side:
        for page in _pages(clients[side], roster, site):
            found |= {name: one for one in page if (name := _name(one)) not in before}
            if len(found) > MOST_LOST:
                raise TranscriptMismatch(
                    f"server {side} says that this site contributed in more than {MOST_LOST:,} rounds that nothing "
                    "here knows of: ask its operator whether its database is this federation's"
                )
    known = memory.rounds()  # after the question: what another study contributes meanwhile was remembered before
    return tuple(one for name, one in sorted(found.items()) if name not in known)


def _pages(client: ServerClient, roster: Roster, site: str) -> Iterator[tuple[ContributedRound, ...]]:
    """All of one server's answer, in the order of studies' digests and rounds. Raises: TranscriptMismatch"""
    last: ContributedRound | None = None
    while True:
        page = _page(client, roster, site, last)
        if page.more and not page.rounds:
            raise TranscriptMismatch(f"server {client.side} says that more rounds follow, and names none")
        names = [_name(one) for one in (*(() if last is None else (last,)), *page.rounds)]
        if any(earlier >= later for earlier, later in pairwise(names)):
            raise TranscriptMismatch(f"server {client.side} names rounds out of their order, or one twice")
        yield page.rounds
        if not page.more:
            return
        last = page.rounds[-1]


def _name(one: ContributedRound) -> tuple[str, int]:
    return one.study_digest, one.round


def _page(client: ServerClient, roster: Roster, site: str, after: ContributedRound | None) -> ContributedRounds:
    nonce = SystemRandomness().bytes(32, "question for receipts").hex()  # a seeded one would be asked twice
    signed = client.contributed(nonce, after)
    page: ContributedRounds = require_signatures(signed, roster, (roster.operator(client.side).name,))
    if (page.site, page.nonce) != (site, nonce):
        raise TranscriptMismatch(f"server {client.side} answered another question than this site's for its receipts")
    return page


def site_learner(study: Study, settings: AgentSettings, seed: int, folder: Path) -> TorchLearner:
    """``folder`` is the study's at this site. Raises: ConfigurationError"""
    if settings.trainer.kind is None:
        return TorchLearner(study, settings.data, settings.plugin, settings.device, seed, folder, settings.sources)
    from client_agent.learning.foreign_trainer import ForeignLearner

    return ForeignLearner(study, settings.data, settings.device, seed, folder, settings.trainer, settings.sources)
