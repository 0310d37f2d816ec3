"""One synthetic site: the agent's own code from the update to the receipts and from the output to the average."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.network.ledger import Ledger, Totals
from client_agent.network.server_client import ServerClient
from client_agent.network.transport import CountingTransport, tls_context
from client_agent.site.journal import StudyJournal
from client_agent.study.contribute import (
    ContributionRecord,
    encoded_path,
    journal_encoded,
    make_contribution,
    send_contribution,
)
from client_agent.study.take_release import Outputs
from harness.bench.vectors import Vector
from host.randomness import SystemRandomness
from protocol.evidence import PastRelease
from protocol.policy.check import Terms, check_weight_list
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.protection.interface import AtSite
from protocol.protection.known import protection_of
from protocol.rules.registry import rule_for
from protocol.sharing import Side
from protocol.wire.authentic import require_roster
from protocol.wire.keyfile import PartyKeys, parse_party_keys, parse_roster
from protocol.wire.messages import Announcement, Roster, Study, WeightList


@dataclass(frozen=True)
class Place:
    """The folder of a running federation: roster, certificate, and one folder with keys per site."""

    folder: Path

    def roster(self) -> Roster:
        path = self.folder / "roster.toml"
        return require_roster(parse_roster(path.read_text(encoding="utf-8"), str(path)))

    def keys(self, site: str) -> PartyKeys:
        path = self.folder / site / "keys.toml"
        return parse_party_keys(path.read_text(encoding="utf-8"), str(path))

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"


@dataclass(frozen=True)
class Sent:
    """One contribution's way to both servers."""

    sealed_bytes: int
    upload_s: float


def terms_of(study: Study, roster: Roster) -> Terms:
    """By what sites and requester judge a list, under the policy that agents ship with."""
    rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
    return Terms(study.parameters, tuple(party.name for party in roster.contributors), rule, SitePolicy())


class SyntheticAgent:
    """A site's connections, journal and ledger; close it in the end."""

    def __init__(self, place: Place, roster: Roster, site: str, *, kept_open: bool = True) -> None:
        """``kept_open``: for many requests, as a real agent is; for one or two a session costs more than it saves."""
        self.site = site
        self.roster = roster
        self.keys = place.keys(site)
        self._state = place.folder / site / "state"
        self._state.mkdir(parents=True, exist_ok=True)
        self._ledger = Ledger(self._state / "ledger.jsonl")
        context = tls_context(place.ca)
        self.clients: dict[Side, ServerClient] = {}
        for side in Side:
            operator = roster.operator(side)
            transport = CountingTransport(operator.name, context, self._ledger)
            self.clients[side] = ServerClient(side, operator, self.keys, transport, in_sessions=kept_open)

    @property
    def traffic(self) -> Totals:
        """Every byte at this site's sockets so far."""
        return self._ledger.totals

    def journal(self, study: Study) -> StudyJournal:
        return StudyJournal(self._state, study.name)

    def check_policy(self, study: Study, announcement: Announcement, weights: WeightList) -> None:
        """Every clause of the shipped policy, as a site checks them before it contributes. Raises: PolicyRefusal"""
        check_weight_list(self.site, announcement, weights, terms_of(study, self.roster), SiteMemory())

    def prepare(
        self, study: Study, announcement: Announcement, numerator: int, update: Vector, tag_seed: str | None = None
    ) -> ContributionRecord:
        """Clip, weigh, encode, add tags where the round has them, share, commit and seal."""
        randomness, journal = SystemRandomness(), self.journal(study)
        at, grid = AtSite(study, self.site, self.roster), study.parameters.weight_grid
        seed, weight = randomness.bytes(32, "rounding"), numerator / grid
        made = protection_of(announcement).encode(at, announcement, update, weight, seed)
        journal_encoded(made, encoded_path(journal, study, announcement), weight, grid)
        return make_contribution(at, announcement, 1, randomness, journal, tag_seed)

    def send(self, study: Study, record: ContributionRecord) -> Sent:
        """Upload both shares at once; returns with both receipts."""
        folder = self.journal(study).attempt_folder(record.round, record.attempt)
        size = sum((folder / f"{side}.sealed").stat().st_size for side in Side)
        begun = time.perf_counter()
        at = AtSite(study, self.site, self.roster)
        send_contribution(record, at, study.digest(), self.clients, self.journal(study))
        return Sent(size, time.perf_counter() - begun)

    def open_output(self, study: Study, past: PastRelease) -> NDArray[np.float32]:
        """Fetch both halves of the sum, check the evidence, open the average."""
        at = AtSite(study, self.site, self.roster)
        return Outputs(at, study.digest(), self.keys.sealing, self.clients).open(past)

    def tidy(self, study: Study) -> None:
        """Delete this study's files; a real agent keeps two rounds."""
        shutil.rmtree(self.journal(study).folder)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self._ledger.close()
