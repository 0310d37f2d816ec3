"""The real agent's code of one site under attack, talking HTTPS to a running pair; the test hands it the views."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import numpy as np

from client_agent.contributor.decisions import Decision
from client_agent.contributor.run import Contributor
from client_agent.learning.scores import FinalScores, Score
from client_agent.net.ledger import Ledger
from client_agent.net.server_client import ServerClient
from client_agent.net.transport import CountingTransport, tls_context
from client_agent.site.context import SiteContext
from client_agent.site.events import AgentEvent
from client_agent.site.identity import HeldRoster
from client_agent.site.journal import StudyJournal
from harness.attack.scripted_rounds import REQUESTER, SMALL, VICTIM, OpenRound
from host.randomness import SystemRandomness
from protocol.messages.control import RoundView, sign
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import RosterChain
from protocol.sharing import Side

MODEL = np.linspace(-1, 1, SMALL, dtype=np.float32)
SITE_KEY = bytes(range(32))


class Untrained:
    """A learner that must not be asked, or answers with a given update."""

    def __init__(self, update: np.ndarray | None) -> None:
        self._update = update

    def prepare(self) -> None:
        return

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        assert self._update is not None, "the site trained for a round that it declines"
        return self._update

    def apply(self, model: np.ndarray, aggregate: np.ndarray) -> np.ndarray:
        return model - aggregate

    def validation_loss(self, model: np.ndarray) -> float | None:
        return None

    def scores(self, model: np.ndarray) -> tuple[Score, ...]:
        return ()

    def final_scores(self, model: np.ndarray, samples: int) -> FinalScores | None:
        return None


class RealSite:
    """The victim's agent, without its loop: the test hands it the servers' views.

    ``reconciled``: it does not mind that a scripted site contributed under its key in other studies of these servers.
    """

    def __init__(
        self,
        opened: OpenRound,
        folder: Path,
        policy: SitePolicy,
        memory: SiteMemory,
        update: np.ndarray | None = None,
        *,
        reconciled: bool = True,
    ) -> None:
        self._federation = federation = opened.federation
        self.events: list[AgentEvent] = []
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.clients = {}
        for side in Side:
            operator = federation.roster.operator(side)
            self.clients[side] = ServerClient(
                side, operator, federation.keys(VICTIM), self._connected(operator.name), clock=federation.clock.now
            )
        context = SiteContext(
            site=VICTIM,
            keys=federation.keys(VICTIM),
            held=HeldRoster(RosterChain(federation.parties.roster)),
            clients=self.clients,
            randomness=SystemRandomness(),
            state_dir=folder,
            policy=policy,
            make_learner=lambda *_: Untrained(update),  # type: ignore[arg-type]
            training_seed=lambda _: 1,
            emit=self.events.append,
            ledger=self.ledger,
            stop=threading.Event(),
            asks_people=False,
            clock=federation.clock,
        )
        context.sums.reconciled_at_s = context.clock.now() if reconciled else None
        signed = sign(opened.sites.study, REQUESTER, federation.keys(REQUESTER).signing)
        self.agent = Contributor(context, signed, StudyJournal(folder, opened.sites.study.name))
        self.agent.adopt_model(MODEL, 0, site_key=SITE_KEY.hex(), memory=memory)

    def _connected(self, server: str) -> httpx.BaseTransport:
        if self._federation.connect is not None:
            return self._federation.connect()
        return CountingTransport(server, tls_context(self._federation.ca_file), self.ledger)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.ledger.close()

    def decide(self) -> Decision:
        return self.agent.decisions.decide(*self.views())

    def views(self) -> tuple[RoundView, RoundView]:
        a, b = (self.clients[side].view(self.agent.study.name).current for side in Side)
        assert a is not None
        assert b is not None
        return a, b

    @property
    def trained(self) -> bool:
        return (self.agent.journal.round_folder(1) / "encoded.json").exists()
