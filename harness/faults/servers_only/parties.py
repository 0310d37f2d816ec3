"""Scripted sites on one event loop: what each keeps is its journal and outlives it; the rest is asked again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import numpy as np

from client_agent.study.take_release import own_key_id
from harness.adversaries.contributions import honest_contribution
from harness.adversaries.scripted.bodies import opened
from harness.faults.servers_only.pair import Pair
from harness.faults.servers_only.peer import Answered
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring, from_bytes
from protocol.release import masking_side, open_output_chunk
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import (
    Announcement,
    OutputHeader,
    Receipt,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyView,
)

PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_POLL_S = 5.0
_OVER = frozenset({RoundState.RELEASED, RoundState.SKIPPED})


@dataclass
class Journal:
    """What a party has on its disk. ``acknowledged``: what a server said that it holds, by which request."""

    sent: dict[str, bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[str, Side], bytes] = field(default_factory=dict)
    sums: dict[int, tuple[tuple[str, ...], bytes]] = field(default_factory=dict)
    over: dict[int, str] = field(default_factory=dict)
    ended: str = ""


class ScriptedSite:
    """A contributor. ``wrong`` collects what it was shown that must not be."""

    def __init__(self, pair: Pair, study: Study, keys: PartyKeys, journal: Journal, wrong: list[str]) -> None:
        self.pair, self.study, self.keys, self.journal, self.wrong = pair, study, keys, journal, wrong
        self.roster = pair.parties.roster.message
        self.me = next(party for party in self.roster.sites if party.name == keys.name)
        self.views: dict[Side, StudyView] = {}
        self._quiet = 0

    @property
    def name(self) -> str:
        return self.me.name

    def path(self, template: str, **values: str | int) -> str:
        return paths.fill(template, study=self.study.name, **values)

    async def run(self) -> None:
        while not self.journal.ended:
            try:
                await self.look(_POLL_S)
                await self.act()
            except httpx.TransportError:
                await self.rest()

    async def rest(self) -> None:
        """The longer nothing new is heard, the longer."""
        self._quiet += 1
        await asyncio.sleep(min(PAUSE_S * 1.5**self._quiet, _LONGEST_PAUSE_S))

    # --- asking ---

    async def ask(self, side: Side, method: str, target: str, body: bytes, kind: str) -> Answered:
        return await self.pair.ask(self.me, side, method, target, body, kind)

    async def once(self, name: str, side: Side, method: str, target: str, make: Callable[[], bytes]) -> bool:
        """Whether the server has it: the same bytes are sent until it says so."""
        if (name, side) in self.journal.acknowledged:
            return True
        if name not in self.journal.sent:
            self.journal.sent[name] = make()
        answer = await self.ask(side, method, target, self.journal.sent[name], name.split(" ", maxsplit=1)[0])
        if answer.ok:
            self.journal.acknowledged[name, side] = answer.body
        return answer.ok

    async def look(self, wait_s: float) -> None:
        before = {side: view.cursor for side, view in self.views.items()}
        for side, patience_s in ((Side.A, wait_s), (Side.B, 0.0)):
            after = self.views[side].cursor if side in self.views else 0
            target = f"{self.path(paths.VIEW)}?after={after}&wait_s={patience_s}"
            answer = await self.ask(side, "GET", target, b"", "view")
            if answer.ok:
                self.views[side] = StudyView.parse(answer.body)
        if before != {side: view.cursor for side, view in self.views.items()}:
            self._quiet = 0
        else:
            await self.rest()

    def current(self) -> dict[Side, RoundView]:
        """Both servers' view of one attempt; nothing while they speak of different ones."""
        found = {side: view.current for side, view in self.views.items() if view.current is not None}
        places = {(one.round, one.attempt) for one in found.values()}
        return found if len(found) == len(Side) and len(places) == 1 else {}

    # --- a round ---

    async def act(self) -> None:
        """What the views ask for."""
        ends = [view.end for view in self.views.values() if view.end is not None]
        if ends:
            await self.take_sum()
            self.journal.ended = f"{ends[0].message.state.value}: {ends[0].message.reason}"
            return
        await self.take_sum()
        for side, view in self.current().items():
            if view.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
                await self.contribute(side, view)

    def update(self, number: int) -> Ring:
        """Whole numbers: their sum is exact. The same for every attempt of a round."""
        seed = int.from_bytes(hashlib.sha256(f"{self.name} {number}".encode()).digest()[:8], "big")
        drawn = np.random.default_rng(seed).integers(-(2**11), 2**11, self.study.parameters.dimension)
        return drawn.astype(np.int64).view(np.uint64)

    async def contribute(self, side: Side, view: RoundView) -> None:
        announcement, attempt = view.announcement.message, view.attempt
        name = f"contribution {view.round} {attempt}"
        both = self._shares(announcement, attempt, name)
        target = self.path(paths.CONTRIBUTION, round=view.round, attempt=attempt)
        if await self.once(f"{name} {side.value}", side, "PUT", target, lambda: both[side]):
            receipt = Signed[Receipt].parse(self.journal.acknowledged[f"{name} {side.value}", side]).message
            if (receipt.site, receipt.round, receipt.attempt) != (self.name, view.round, attempt):
                self.wrong.append(f"wrong receipt: {self.name} for {name}")

    def _shares(self, announcement: Announcement, attempt: int, name: str) -> dict[Side, bytes]:
        kept = {side: self.journal.sent.get(f"{name} {side.value}") for side in Side}
        if None in kept.values():
            rand = derive(hashlib.sha256(f"{self.name} {name}".encode()).digest(), "share")
            made = honest_contribution(
                self.update(announcement.round), announcement, self.name, self.roster, rand, attempt
            )
            for side in Side:
                self.journal.sent[f"{name} {side.value}"] = made[side].sealed()
        return {side: self.journal.sent[f"{name} {side.value}"] for side in Side}

    async def take_sum(self) -> None:
        """Of the latest round that a server calls released, once both serve it."""
        views = self.current()
        states = {view.state for view in views.values()}
        for view in list(views.values())[:1]:
            if RoundState.RELEASED in states and states & {RoundState.SKIPPED, RoundState.BURNT}:
                self.wrong.append(f"two ends: round {view.round}, released at one server and not at the other")
            if states == {RoundState.SKIPPED}:
                self.journal.over.setdefault(view.round, "skipped")
            if states == {RoundState.RELEASED} and view.round not in self.journal.sums:
                await self._open(view)

    async def _open(self, view: RoundView) -> None:
        halves = {}
        for side in Side:
            answer = await self.ask(side, "GET", self.path(paths.OUTPUT, round=view.round), b"", "output")
            if not answer.ok:
                return
            header, halves[side] = opened(answer.body, self.keys.sealing, OutputHeader)
            if header.recipient != own_key_id(self.roster, self.name):
                self.wrong.append(f"wrong output: of round {view.round} for {self.name}")
        masks = masking_side(view.round)
        vector = from_bytes(halves[masks.other], self.study.parameters.dimension)
        total = open_output_chunk(vector, halves[masks], 0)
        sites = () if view.release_set is None else view.release_set.message.sites
        self.journal.sums[view.round] = (tuple(sites), total.tobytes())
        self.journal.over[view.round] = "released"
