"""One site's means, shared by all of its studies: keys, connections, policy, ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from client_agent.learning.learner import Learner
from client_agent.network.held_roster import HeldRoster
from client_agent.network.ledger import Ledger
from client_agent.network.server_client import ServerClient
from client_agent.quiet_hours import NO_QUIET_HOURS, QuietHours
from client_agent.site.budget.spent_budget import BudgetMemory, budget_memory
from client_agent.site.events import EventSink
from client_agent.site.remembered_cohorts import CohortMemory, cohort_memory
from client_agent.site.remembered_sums import SumMemory, sum_memory
from client_agent.site.telling.ways import Notice
from host.clock import SYSTEM, Clock
from host.randomness import Randomness
from protocol.messages.control import Roster, Study
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
    start_timeout_s: float = 3600.0
    stuck_timeout_s: float = 259_200.0
    bootstrap_samples: int = 0
    transcripts_kept_rounds: int = 10_000
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
