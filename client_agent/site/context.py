"""One site's means, shared by all of its studies; the rows of its memories, compared with the servers' receipts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from client_agent.learning.learner import Learner
from client_agent.net.ledger import Ledger
from client_agent.net.quiet_hours import NO_QUIET_HOURS, QuietHours
from client_agent.net.server_client import ServerClient
from client_agent.settings import AgentSettings
from client_agent.site.events import EventSink
from client_agent.site.identity import HeldRoster
from client_agent.site.notifications import Notice
from client_agent.site.privacy_budget import BudgetMemory, budget_memory
from client_agent.site.sum_memory import CohortMemory, SumMemory, cohort_memory, sum_memory
from host.clock import SYSTEM, Clock, at_once
from host.randomness import Randomness, SystemRandomness
from protocol.errors import Clause, PolicyRefusal, TranscriptMismatch
from protocol.messages.control import (
    Announcement,
    ContributedRound,
    ContributedRounds,
    Roster,
    Study,
    WeightList,
    require_signatures,
)
from protocol.policy.cohorts import Cohort
from protocol.policy.exposure import SummedRow, SummedWeight
from protocol.policy.memory import Layers
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from protocol.summary.protection import Question

if TYPE_CHECKING:
    from client_agent.learning.torch_learner import TorchLearner

RELAY = Side.A
"""The server that carries the sites' mail."""
_log = structlog.get_logger("agent")
T = TypeVar("T")
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

    def at_both(self, call: Callable[[ServerClient], T]) -> dict[Side, T]:
        """One call at each server, at the same time; the first error is raised after both have ended."""
        return at_once({side: partial(call, self.clients[side]) for side in Side}, self.clock, "both")

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


def reconcile(context: SiteContext) -> None:
    """Before the first contribution and now and then: this site remembers every sum that a server saw it in.

    Again, because another agent may run with the same key and another state folder, and neither sees the other's sums.
    A server that names rounds that never were keeps the site from contributing, which it can do anyway.
    Raises: Unavailable while one of them cannot be reached; PolicyRefusal, clause ``memory_unreconciled``
    """
    what = "this site's memory of sums lacks {} rounds that the servers have its receipts for"
    advice = (
        "an older copy of the state folder was put back, a part of it was lost, or another agent has this key; stop "
        "the agent, restore the newest backup of its state folder, and run no other agent with this key; if there is "
        "no backup, read docs/joining.md and then run: moiety agent accept-rollback"
    )
    _require_whole(context, context.sums, Clause.MEMORY_UNRECONCILED, what, advice)


def reconcile_budget(context: SiteContext) -> None:
    """With a budget: every round that a server has this site's receipt for is in its count. As often as the sums.

    So a count that was deleted or put back spends nothing twice. Raises: Unavailable while one of them cannot be
    reached; PolicyRefusal, clause ``budget_unreconciled``
    """
    what = "this site's count of its privacy budget lacks {} rounds that servers have its receipts for"
    advice = (
        "stop the agent and restore the newest backup of its state folder; where these rounds had no noise, or there "
        "is no backup, read docs/joining.md and then run: moiety agent accept-rollback"
    )
    if context.policy.epsilon is not None:
        _require_whole(context, context.budget, Clause.BUDGET_UNRECONCILED, what, advice)


def _require_whole(
    context: SiteContext, memory: SumMemory | BudgetMemory, clause: Clause, what: str, advice: str
) -> None:
    now_s, last_s = context.clock.now(), memory.reconciled_at_s
    if last_s is not None and abs(now_s - last_s) < _AGAIN_AFTER_S:
        return
    lost = lost_rounds(memory, context.clients, context.roster, context.site)
    if lost:
        names = ", ".join(f"{found.study} round {found.round}" for found in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        told = what.format(len(lost))
        raise PolicyRefusal(clause, f"{told}: {names}{more}; {advice}", told)
    memory.reconciled_at_s = now_s


def lost_rounds(
    memory: SumMemory | BudgetMemory, clients: Mapping[Side, ServerClient], roster: Roster, site: str
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
    from client_agent.learning.torch_learner import ForeignLearner, TorchLearner  # loads torch

    learner: TorchLearner
    if settings.trainer.kind is None:
        learner = TorchLearner(study, settings.data, settings.plugin, settings.device, seed, folder, settings.sources)
    else:
        learner = ForeignLearner(
            study, settings.data, settings.device, seed, folder, settings.trainer, settings.sources
        )
    for remark in learner.remarks:
        _log.warning("data_remark", study=study.name, detail=remark)
    return learner


def summed_row(announcement: Announcement, weight_list: WeightList, held: HeldRoster, layers: Layers) -> SummedRow:
    """The weights of one round's contributors by their keys; nobody knows yet who will be summed."""
    return SummedRow(
        study_digest=announcement.study_digest,
        round=announcement.round,
        dimension=sum(size for _, size in layers),
        layers=tuple(layers),
        weights=tuple(
            SummedWeight(site=held.name_of(weight.site), weight=weight.numerator / weight_list.grid)
            for weight in weight_list.weights
        ),
        least=announcement.least_contributors,
        requester=held.name_of(held.head.requester),
        model_version=announcement.model_version,
    )


def settle_sum(context: SiteContext, study_digest: str, past: PastRelease) -> None:
    """A release named who was summed, in a round that this site remembers.

    Requires: the evidence was checked, and both servers showed this release set, or outputs that name it
    """
    release, summed = past.release_set.message, summed_sites(context, past)
    context.sums.settle((study_digest, release.round), summed)
    context.cohorts.settle((study_digest, release.round), summed)


def summed_sites(context: SiteContext, past: PastRelease) -> tuple[str, ...]:
    """The contributors that a release set names, by their keys."""
    held = context.held
    return tuple(held.name_of(site) for site in past.release_set.message.sites if site != held.head.requester)


def drop_sum(context: SiteContext, study_digest: str, round_number: int) -> None:
    """Both servers signed that the round was skipped."""
    context.sums.drop((study_digest, round_number))
    context.cohorts.drop((study_digest, round_number))


def cohort_of(announcement: Announcement, held: HeldRoster, questions: Sequence[Question]) -> Cohort:
    """The contributors of a round of class counts or of a summary; nobody knows yet who will be summed."""
    return Cohort(
        study_digest=announcement.study_digest,
        round=announcement.round,
        listed=tuple(held.name_of(site) for site in announcement.listed),
        least=announcement.least_contributors,
        questions=tuple(questions),
        requester=held.name_of(held.head.requester),
    )


def agree_to_cohort(
    context: SiteContext, announcement: Announcement, colluders: int, questions: Sequence[Question]
) -> None:
    """Check over whom this round sums the data as they are and what it asks, remember both; then shares may leave.

    Raises: PolicyRefusal, clause ``cohort`` or ``question``
    """
    context.cohorts.agree(cohort_of(announcement, context.held, questions), colluders, context.policy)
