"""Synthetic sites: the agent's own code from the update to the receipts and from the output to the average.

Any process can make any site's update again, and numpy can average them.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.net.ledger import Ledger, Totals
from client_agent.net.server_client import ServerClient
from client_agent.net.transport import CountingTransport, tls_context
from client_agent.site.journal import StudyJournal
from client_agent.study.contribution import (
    ContributionRecord,
    encoded_path,
    journal_encoded,
    make_contribution,
    send_contribution,
)
from client_agent.study.release import Outputs
from host.randomness import SystemRandomness
from protocol.messages.control import Announcement, Roster, Study, WeightList, require_roster
from protocol.parameters import StudyParameters
from protocol.policy.clauses import Terms, check_weight_list
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.protection.interface import AtSite
from protocol.protection.registry import protection_of
from protocol.roster.keyfile import PartyKeys, parse_party_keys, parse_roster
from protocol.rounds.evidence import PastRelease
from protocol.rules.registry import rule_for
from protocol.sharing import Side

CLIP_NORM: Final = 1.0
_GRIDS: Final = (32, 16, 8, 4, 2, 1)
_LONGER_THAN_CLIP: Final = 1.1

Vector = NDArray[np.float32]


def parameters_for(dimension: int, sites: int) -> StudyParameters:
    """The finest weight grid, of at most 32, that keeps rounding noise small at this dimension (docs/protocol.md 2)."""
    encoded_norm = StudyParameters(dimension=1, clip_norm=CLIP_NORM, least_contributors=1).encoded_norm
    grid = next((g for g in _GRIDS if 16 * math.sqrt(dimension) * g <= encoded_norm), 1)
    return StudyParameters(
        dimension=dimension, clip_norm=CLIP_NORM, weight_grid=grid, least_contributors=max(1, sites - 1)
    )


def update_of(place: int, dimension: int) -> Vector:
    """The update of the site at a place of the roster: uniform, a tenth longer than the clip norm.

    Shapes:   -> float32[D]
    """
    out = np.empty(dimension, dtype=np.float32)
    np.random.default_rng([place, dimension]).random(out=out, dtype=np.float32)
    out -= np.float32(0.5)
    out *= np.float32(_LONGER_THAN_CLIP * CLIP_NORM / math.sqrt(dimension / 12))
    return out


def numerator_of(place: int, grid: int) -> int:
    """Weights differ from site to site, between three quarters and all of the grid; the requester's is the grid."""
    return grid if place == 0 else max(1, grid - place % max(1, grid // 4 + 1))


@dataclass(frozen=True)
class PlainAverage:
    """numpy's weighted average of the clipped vectors, and the CPU time of the additions alone."""

    average: Vector = field(repr=False)
    cpu_ns: int


def plain_average(places: list[int], parameters: StudyParameters) -> PlainAverage:
    """FedAvg over the same vectors; making and clipping them is not counted."""
    total = np.zeros(parameters.dimension, dtype=np.float32)
    weights, cpu_ns = 0.0, 0
    for place in places:
        vector = update_of(place, parameters.dimension)
        norm = math.sqrt(float(np.dot(vector, vector)))
        weight = numerator_of(place, parameters.weight_grid) / parameters.weight_grid
        factor = np.float32(weight * min(1.0, parameters.clip_norm / norm))
        begun = time.process_time_ns()
        np.multiply(vector, factor, out=vector)
        np.add(total, vector, out=total)
        cpu_ns += time.process_time_ns() - begun
        weights += weight
    begun = time.process_time_ns()
    np.divide(total, np.float32(weights), out=total)
    return PlainAverage(total, cpu_ns + time.process_time_ns() - begun)


def largest_allowed_difference(places: list[int], parameters: StudyParameters) -> float:
    """Between the opened average and numpy's.

    Each site's rounding moves a coordinate by less than 2^-f; the sum is divided by the weights. numpy's float32
    sum of n terms of at most c each is off by at most n * 2^-24 * n * c, and its dot product, a pairwise sum of D
    squares, scales everything by an error far below 2^-12: together 2^-11 of the largest coordinate are allowed.
    """
    weights = sum(numerator_of(p, parameters.weight_grid) for p in places) / parameters.weight_grid
    largest = 0.5 * _LONGER_THAN_CLIP * CLIP_NORM / math.sqrt(parameters.dimension / 12)
    return len(places) / parameters.scale / weights + largest * 2.0**-11


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


def terms_of(study: Study, roster: Roster) -> Terms:
    """Return the terms by which sites and requester judge a list, under the shipped policy."""
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

    def send(self, study: Study, record: ContributionRecord) -> tuple[int, float]:
        """Upload both shares at once, until both receipts are there; sealed bytes, and seconds."""
        folder = self.journal(study).attempt_folder(record.round, record.attempt)
        size = sum((folder / f"{side}.sealed").stat().st_size for side in Side)
        begun = time.perf_counter()
        at = AtSite(study, self.site, self.roster)
        send_contribution(record, at, study.digest(), self.clients, self.journal(study))
        return size, time.perf_counter() - begun

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
