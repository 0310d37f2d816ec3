"""Parties of a benchmark's round, with the agent's own messages, queries and checks.

A scripted requester goes one step at a time; all contributors are in a process of their own, whose CPU time and memory
are an agent's. Making synthetic updates is not counted as CPU time.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Literal

import numpy as np

from client_agent.net.envelopes import Body
from client_agent.study.contribution import ENCODED, ContributionRecord, EncodedFile
from harness.attack.forgeries import release_set
from harness.attack.scripted_requester import evidence_of, sealed_queries
from harness.attack.signed_client import there
from harness.bench.synthetic import Place, SyntheticAgent, Vector, numerator_of, terms_of, update_of
from protocol.errors import ProtocolViolation, Unavailable
from protocol.messages import bodies
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    Go,
    ListedWeight,
    OpeningHeader,
    ReadyNotice,
    RoundState,
    RoundView,
    Signed,
    Study,
    TagSeed,
    WeightList,
    sign,
)
from protocol.mpc.measurement import open_all
from protocol.parameters import Needs
from protocol.policy.clauses import check_for_every_site
from protocol.policy.memory import SiteMemory
from protocol.rounds.evidence import PastRelease
from protocol.rounds.judgement import longest_distance
from protocol.sharing import Side, vector_side
from protocol.tags import judged, require_check, require_commitment, seed_hash, shown_seed

_WAIT_S: Final = 10.0
_PATIENCE_S: Final = 3600.0
_NO_MODEL: Final = "00" * 32
_SERVERS: Final = tuple(Side)


class ScriptedRequester:
    """Drives the rounds of one study, with the first ``contributors`` of the roster listed."""

    def __init__(self, agent: SyntheticAgent, study: Study, contributors: int) -> None:
        self.agent = agent
        self.study = study
        self.listed = tuple(party.name for party in agent.roster.contributors[:contributors])
        self._clients = agent.clients
        self._roster = agent.roster
        self._numerators = {
            party.name: numerator_of(place, study.parameters.weight_grid)
            for place, party in enumerate(agent.roster.sites)
        }

    def create(self) -> None:
        signed = sign(self.study, self.agent.site, self.agent.keys.signing)
        notice = ReadyNotice(study_digest=self.study.digest(), site=self.agent.site)
        for side in _SERVERS:
            self._clients[side].create_study(signed)
            self._clients[side].ready(self.study.name, notice)

    def announce(self, number: int) -> tuple[Announcement, WeightList]:
        """Open a round for every listed contributor, if all their policies would agree. Raises: PolicyRefusal"""
        weights = WeightList(
            study_digest=self.study.digest(),
            round=number,
            grid=self.study.parameters.weight_grid,
            weights=tuple(ListedWeight(site=site, numerator=self._numerators[site]) for site in self.listed),
            salt=secrets.token_hex(32),
            tag_seed=secrets.token_hex(32) if self.study.tags else None,
        )
        seed = None if weights.tag_seed is None else bytes.fromhex(weights.tag_seed)
        announcement = Announcement(
            study_digest=self.study.digest(),
            round=number,
            listed=self.listed,
            least_contributors=self.study.parameters.least_contributors,
            opens=Needs.DISTANCES,
            model_version=number - 1,
            model_digest=_NO_MODEL,
            weight_list_digest=weights.digest(),
            closes_at_s=int(time.time() + self.study.round_deadline_s),
            tag_seed_hash=None if seed is None else seed_hash(weights.study_digest, number, seed),
        )
        check_for_every_site(announcement, weights, terms_of(self.study, self._roster), SiteMemory())
        signed = sign(announcement, self.agent.site, self.agent.keys.signing)
        for side in _SERVERS:
            self._clients[side].announce(self.study.name, signed)
        return announcement, weights

    def prepare(self, announcement: Announcement, weights: WeightList, update: Vector) -> ContributionRecord:
        """The requester's own contribution, of weight 1, not sent yet."""
        numerator = self._numerators[self.agent.site]
        return self.agent.prepare(self.study, announcement, numerator, update, weights.tag_seed)

    def send_half(self, record: ContributionRecord, *, vector: bool) -> None:
        """Send the large half, or the small one, without which the round cannot lock."""
        large = vector_side(self._roster.place(self.agent.site))
        side = large if vector else large.other
        folder = self.agent.journal(self.study).attempt_folder(record.round, record.attempt)
        body = Body.contribution(folder / record.file(side), bytes.fromhex(record.digests[side]))
        self._clients[side].contribute(self.study.name, record.round, record.attempt, body)

    def measure(self, announcement: Announcement) -> Signed[AgreedSet]:
        """Wait for the challenge, send the queries, open what both servers seal, check it; the agreed set.

        Raises: ProtocolViolation, when a site fails the range check or shows an impossible distance
        """
        a, b = self._wait(lambda view: view.transcript is not None and len(view.transcript.signatures) > 1)
        agreed, _, transcript_digest = evidence_of(a, self._roster)
        if evidence_of(b, self._roster)[2] != transcript_digest:
            raise ProtocolViolation("benchmark: the servers show different challenges")
        folder = self.agent.journal(self.study).round_folder(a.round)
        own = EncodedFile(folder / ENCODED, self.study.parameters.dimension)
        _, sealed = sealed_queries(a, self.study, own, self._numerators, self._roster)
        for side in _SERVERS:
            self._clients[side].send_queries(self.study.name, a.round, 1, Body.sealed(sealed[side]))
        self._wait(lambda view: view.state is RoundState.MEASURED)
        most = bodies.most_opening_bytes(len(agreed.sites))
        a_shares, b_shares = (
            bodies.read_opening(
                self._clients[side].opening(self.study.name, announcement.round, 1, most),
                OpeningHeader(
                    transcript_digest=transcript_digest,
                    side=side,
                    checked=agreed.sites,
                    opens=announcement.opens,
                ),
                self.agent.site,
                self.agent.keys.sealing,
            )
            for side in _SERVERS
        )
        for site in open_all(a_shares, b_shares, self._numerators, self.study.parameters):
            longest = longest_distance(
                self.study.parameters, self._numerators[site.site], self.study.parameters.clip_norm
            )
            if not site.in_range or (site.distance is not None and not 0 < site.distance <= longest):
                raise ProtocolViolation(f"benchmark: {site.site} shows distance {site.distance}, at most {longest}")
        return there(a.agreed_set, "agreed set")

    def release(self, announcement: Announcement, weights: WeightList, agreed: Signed[AgreedSet]) -> PastRelease:
        """Sign the release of everybody and wait until both servers have released, or committed to it."""
        release = sign(release_set(agreed.message, agreed.message.sites), self.agent.site, self.agent.keys.signing)
        for side in _SERVERS:
            self._clients[side].release(self.study.name, release)
        awaited = RoundState.COMMITTED if self.study.tags else RoundState.RELEASED
        self._wait(lambda view: view.state is awaited)
        return PastRelease(announcement=announcement, weight_list=weights, agreed_set=agreed, release_set=release)

    def go(self, past: PastRelease) -> PastRelease:
        """Show both servers the seed of the tags, check what they say, say go and wait until both have released.

        Raises: ProtocolViolation, when the tags of the sum are wrong
        """
        release, name = past.release_set.message, self.study.name
        seed = TagSeed(
            study_digest=release.study_digest,
            round=release.round,
            attempt=release.attempt,
            seed=shown_seed(bytes.fromhex(past.weight_list.tag_seed or "")).hex(),
        )
        views = dict(zip(_SERVERS, self._wait(lambda view: view.commitment is not None), strict=True))
        with ThreadPoolExecutor(len(_SERVERS)) as pool:
            checks = tuple(pool.map(lambda side: self._clients[side].tag_seed(name, seed), _SERVERS))
        committed = {side: view.commitment for side, view in views.items() if view.commitment is not None}
        for side, check in zip(_SERVERS, checks, strict=True):
            require_check(check, require_commitment(committed[side], release, side, self._roster), self._roster)
        said = judged(release, (committed[Side.A], committed[Side.B]), (checks[0], checks[1]))
        if not isinstance(said, Go):
            raise ProtocolViolation("benchmark: the tags of an honest sum are wrong")
        signed = sign(said, self.agent.site, self.agent.keys.signing)
        for side in _SERVERS:
            self._clients[side].go(name, signed)
        self._wait(lambda view: view.state is RoundState.RELEASED)
        return past.model_copy(update={"go": signed})

    def _wait(self, arrived: Callable[[RoundView], bool]) -> tuple[RoundView, RoundView]:
        """Both servers' views, once both show it. Raises: Unavailable"""
        return self._wait_at(Side.A, arrived), self._wait_at(Side.B, arrived)

    def _wait_at(self, side: Side, arrived: Callable[[RoundView], bool]) -> RoundView:
        deadline, after = time.monotonic() + _PATIENCE_S, 0
        while time.monotonic() < deadline:
            view = self._clients[side].view(self.study.name, after=after, wait_s=_WAIT_S)
            after = view.cursor
            if view.current is not None and arrived(view.current):
                return view.current
            if view.current is not None and view.current.state is RoundState.SKIPPED:
                raise Unavailable(f"benchmark: server {side} skipped the round: {view.current.outcome}")
        raise Unavailable(f"benchmark: server {side} did not get further within {_PATIENCE_S:g} s")

    def average(self, past: PastRelease) -> Vector:
        """The opened sum, as every site opens it."""
        return np.asarray(self.agent.open_output(self.study, past), dtype=np.float32)


KEPT_OPEN: Final = 101  # sites, the requester among them; connections of more are opened anew for each step


@dataclass
class Played:
    """Cost of one step, summed over the sites. ``making_s``: wall time of the synthetic updates."""

    cpu_ns: int = 0
    making_s: float = 0.0
    sealed_bytes: int = 0
    upload_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    @contextmanager
    def by(self, agent: SyntheticAgent) -> Iterator[None]:
        """Count what an agent does."""
        before, begun = agent.traffic, time.process_time_ns()
        yield
        self.cpu_ns += time.process_time_ns() - begun
        self.sent_bytes += agent.traffic.socket_sent_bytes - before.socket_sent_bytes
        self.received_bytes += agent.traffic.socket_received_bytes - before.socket_received_bytes


class Contributors:
    """All contributors of a federation, one after the other; for a process of their own."""

    def __init__(self, folder: Path) -> None:
        self._place = Place(folder)
        self._roster = self._place.roster()
        self._open: dict[str, SyntheticAgent] = {}

    def contribute(self, study: Study, announcement: Announcement, weights: WeightList) -> Played:
        """Every listed site checks its policy, makes its update, encodes, shares, seals and sends it."""
        played = Played()
        for site in announcement.listed:
            self._contribute(study, announcement, weights, site, played)
        return played

    def open(self, study: Study, evidence: str) -> Played:
        """Every listed site fetches and opens the released sum; ``evidence`` is the release as JSON."""
        played, past = Played(), PastRelease.model_validate_json(evidence)
        for site in past.announcement.listed:
            with self._agent(site) as agent:
                with played.by(agent):
                    agent.open_output(study, past)
                agent.tidy(study)
        return played

    def _contribute(
        self, study: Study, announcement: Announcement, weights: WeightList, site: str, played: Played
    ) -> None:
        place = self._roster.place(site)
        begun = time.perf_counter()
        update = update_of(place, study.parameters.dimension)
        played.making_s += time.perf_counter() - begun
        numerator = numerator_of(place, study.parameters.weight_grid)
        with self._agent(site) as agent:
            with played.by(agent):
                agent.check_policy(study, announcement, weights)
                record = agent.prepare(study, announcement, numerator, update, weights.tag_seed)
                sealed_bytes, upload_s = agent.send(study, record)
            agent.tidy(study)
        played.sealed_bytes += sealed_bytes
        played.upload_s += upload_s

    @contextmanager
    def _agent(self, site: str) -> Iterator[SyntheticAgent]:
        kept_open = len(self._roster.sites) <= KEPT_OPEN
        agent = self._open.get(site) or SyntheticAgent(self._place, self._roster, site, kept_open=kept_open)
        if kept_open:
            self._open[site] = agent
            yield agent
            return
        try:
            yield agent
        finally:
            agent.close()


class ContributorProcess:
    """The process that plays all contributors: its CPU time and memory are theirs alone."""

    def __init__(self, folder: Path) -> None:
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(folder,))
        self.pid = self._pool.submit(os.getpid).result()

    def contribute(self, study: Study, announcement: Announcement, weights: WeightList) -> Played:
        return self._played("contribute", study, announcement, weights)

    def open(self, study: Study, past: PastRelease) -> Played:
        return self._played("open", study, past.model_dump_json())  # a signed message is of a class made at run time

    def _played(self, step: Literal["contribute", "open"], *arguments: object) -> Played:
        try:
            return self._pool.submit(_play, step, *arguments).result()
        except BrokenProcessPool:
            raise Unavailable("the contributors' process was ended from outside: is there enough memory?") from None

    def close(self) -> None:
        self._pool.shutdown()


_here: list[Contributors] = []


def _begin(folder: Path) -> None:
    _here.append(Contributors(folder))


def _play(step: Literal["contribute", "open"], *arguments: object) -> Played:
    played: Played = getattr(_here[0], step)(*arguments)
    return played
