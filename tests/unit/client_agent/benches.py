"""A contributor and a requester without servers or training: mail is kept in memory, updates are given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from client_agent.contributor.run import Contributor
from client_agent.net.envelopes import Body
from client_agent.net.ledger import Ledger
from client_agent.requester.run import Requester
from client_agent.requester.study import RoundPlan
from client_agent.site.context import SiteContext
from client_agent.site.events import AgentEvent, EventKind
from client_agent.site.identity import HeldRoster
from client_agent.site.journal import StudyJournal
from harness.federation.clocks import ToldClock
from harness.federation.learners import LightLearner
from host.randomness import SystemRandomness
from protocol.errors import MoietyError, OutputGone, TooLarge
from protocol.messages.control import ContributedRound, ContributedRounds, Decline, Signed, Study, sign
from protocol.messages.letter import open_letter
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import RosterChain
from protocol.rules.interface import SiteFacts
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.federation import CONTRIBUTORS, REQUESTER, ROSTER, keys, operator_keys

SITE = "c1"
SITE_KEY = bytes(range(32))
WITHIN_S = 60.0


def until(found: Callable[[], bool]) -> None:
    """Wait for something that happens on any machine."""
    deadline = time.monotonic() + WITHIN_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass
class FakeServer:
    """Mail only; contributions are refused or counted. ``receipts`` are the rounds it says it has receipts for."""

    side: Side
    mail: dict[str, bytes] = field(default_factory=dict)
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    refuses: MoietyError | None = None
    receipts: tuple[ContributedRound, ...] = ()

    def contributed(self, nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        page = ContributedRounds(site=SITE, nonce=nonce, rounds=self.receipts, more=False)
        return sign(page, operator_keys(self.side).name, operator_keys(self.side).signing)

    def get_mail(self, name: str, topic: str, recipient: str, sender: str, most_bytes: int) -> bytes:
        self.read.append(f"{topic}/{sender}")
        named = self.mail.get(f"{topic}/{recipient}/{sender}")
        letter = self.mail[f"{topic}/{recipient}"] if named is None else named
        if len(letter) > most_bytes:
            raise TooLarge(f"more than {most_bytes} bytes")
        return letter

    def fetch_mail(self, name: str, topic: str, recipient: str, sender: str, into: Path, most_bytes: int) -> None:
        into.write_bytes(self.mail[f"{topic}/{recipient}"])

    def put_mail(self, name: str, topic: str, recipient: str, body: Body) -> None:
        self.sent.setdefault(f"{topic}/{recipient}", []).append(b"".join(body.pieces()))

    def fetch_output(
        self, name: str, round_number: int, take: Callable[[Iterator[bytes]], object], most_bytes: int
    ) -> object:
        raise OutputGone(f"the output of round {round_number} is no longer kept")

    def contribute(self, name: str, round_number: int, attempt: int, body: Body) -> None:
        if self.refuses is not None:
            raise self.refuses


class FakeLearner(LightLearner):
    """Its update is the same one over every model."""

    def __init__(self, update: np.ndarray, counts: tuple[int, ...]) -> None:
        self._update, self._counts, self._rate = update, counts, np.float32(1)

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        return self._update

    def sample_count(self) -> int:
        return sum(self._counts)

    def class_counts(self) -> tuple[int, ...]:
        return self._counts


@dataclass
class AgentBench:
    servers: dict[Side, FakeServer]
    events: list[AgentEvent]

    def texts(self, kind: EventKind) -> list[str]:
        return [event.text for event in self.events if event.kind is kind]


@dataclass
class Bench(AgentBench):
    contributor: Contributor

    def decline(self, round_number: int = 1) -> Decline:
        """The letter that this site sent, opened and verified as the requester does."""
        (sealed,) = set(self.servers[Side.A].sent[f"decline-{round_number}/{REQUESTER}"])
        key = keys(REQUESTER).sealing
        letter = open_letter(
            sealed, Signed[Decline], "decline", self.contributor.study_digest, SITE, REQUESTER, round_number, key
        )
        assert letter.signature_of(SITE) is not None
        return letter.message


@dataclass
class RequesterBench(AgentBench):
    requester: Requester


def planned(of: RequesterBench | Requester) -> RoundPlan:
    """The requester's next round."""
    return present((of.requester if isinstance(of, RequesterBench) else of).next_plan())


@contextmanager
def contributor_bench(
    folder: Path, study: Study, model: np.ndarray, policy: SitePolicy | None = None, counts: tuple[int, ...] = (10, 30)
) -> Iterator[Bench]:
    """The agent of ``SITE``, welcomed with ``model``; its updates are 0.01 everywhere."""
    events: list[AgentEvent] = []
    servers = {side: FakeServer(side) for side in Side}
    with _context(folder, SITE, study, servers, events, policy or SitePolicy(), counts) as context:
        journal = StudyJournal(folder, study.name)
        made = Contributor(context, sign(study, REQUESTER, keys(REQUESTER).signing), journal)
        made.adopt_model(model, 0, site_key=SITE_KEY.hex())
        yield Bench(servers, events, made)


@contextmanager
def requester_bench(
    folder: Path, study: Study, model: np.ndarray, policy: SitePolicy | None = None
) -> Iterator[RequesterBench]:
    """The requester with all contributors admitted; its time stands still."""
    events: list[AgentEvent] = []
    servers = {side: FakeServer(side) for side in Side}
    with _context(folder, REQUESTER, study, servers, events, policy or SitePolicy(), (10, 30)) as context:
        journal = StudyJournal(folder, study.name)
        made = Requester(context, sign(study, REQUESTER, keys(REQUESTER).signing), journal)
        made.adopt_model(model, 0, site_key="77" * 32)
        facts = tuple(SiteFacts(name=name, samples=50) for name in CONTRIBUTORS)
        made.keep(rule_state=made.rule.admit(made.progress.rule_state, facts))
        yield RequesterBench(servers, events, made)


@contextmanager
def _context(
    folder: Path,
    site: str,
    study: Study,
    servers: dict[Side, FakeServer],
    events: list[AgentEvent],
    policy: SitePolicy,
    counts: tuple[int, ...],
) -> Iterator[SiteContext]:
    update = np.full(study.model_dimension, 0.01, dtype=np.float32)
    ledger = Ledger(folder / "ledger.jsonl")
    try:
        yield SiteContext(
            site=site,
            keys=keys(site),
            held=HeldRoster(RosterChain(Signed(message=ROSTER, signatures=()))),
            clients=servers,  # type: ignore[arg-type]
            randomness=SystemRandomness(),
            state_dir=folder,
            policy=policy,
            make_learner=lambda *_: FakeLearner(update, counts),
            training_seed=lambda _: 1,
            emit=events.append,
            ledger=ledger,
            stop=threading.Event(),
            asks_people=False,
            clock=ToldClock(lambda: 1e9),
        )
    finally:
        ledger.close()
