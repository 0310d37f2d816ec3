"""Scripted sites on one event loop, honest and lying: a site's journal outlives it, the rest is asked again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

from harness.attack.forgeries import honest_contribution
from harness.attack.signed_client import opened
from harness.faults.isolation import Hiding, Told, Update
from harness.faults.schedule import Lie
from harness.faults.server_pair import Pair
from protocol.arithmetic.ring import Ring, derive, from_bytes
from protocol.errors import MoietyError
from protocol.messages import paths
from protocol.messages.control import (
    Announcement,
    EndCause,
    OutputHeader,
    Party,
    Receipt,
    ReleaseSet,
    Roster,
    RosterChange,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyView,
    sign,
)
from protocol.release import masking_side, open_output_chunk
from protocol.roster.chain import RosterChain
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_POLL_S = 5.0
_STRANGER = 401


@dataclass(frozen=True)
class Script:
    """The study of every scripted site. ``told``: the sums that the requester tells everybody of."""

    study: Study
    update: Update
    told: dict[int, Told]


@dataclass
class Journal:
    """The contents of a party's disk. ``acknowledged``: what a server said that it holds, by which request.

    ``let_in``: a server has answered it as a site; ``declined``: rounds that would show too much.
    """

    chain: RosterChain
    hiding: Hiding | None = None
    let_in: bool = False
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)
    sent: dict[str, bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[str, Side], bytes] = field(default_factory=dict)
    sums: dict[int, tuple[tuple[str, ...], bytes]] = field(default_factory=dict)
    over: dict[int, str] = field(default_factory=dict)
    ended: str = ""


class ScriptedSite:
    """A contributor. ``wrong`` collects what it was shown that must not be."""

    def __init__(
        self, pair: Pair, script: Script, me: Party, keys: PartyKeys, journal: Journal, wrong: list[str]
    ) -> None:
        self.pair, self.script, self.me, self.keys, self.journal, self.wrong = pair, script, me, keys, journal, wrong
        self.study = script.study
        self.views: dict[Side, StudyView] = {}
        self._quiet = 0

    @property
    def name(self) -> str:
        return self.me.name

    @property
    def roster(self) -> Roster:
        """The newest that it knows of."""
        return self.journal.chain.head

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

    async def ask(self, side: Side, method: str, target: str, body: bytes, kind: str) -> httpx.Response:
        return await self.pair.ask(self.me, side, method, target, body, kind)

    async def once(self, name: str, side: Side, method: str, target: str, make: Callable[[], bytes]) -> bool:
        """Send the same bytes until the server says that it has them; return whether it has."""
        if (name, side) in self.journal.acknowledged:
            return True
        if name not in self.journal.sent:
            self.journal.sent[name] = make()
        answer = await self.ask(side, method, target, self.journal.sent[name], name.split(" ", maxsplit=1)[0])
        if answer.is_success:
            self.journal.acknowledged[name, side] = answer.content
        return answer.is_success

    async def look(self, wait_s: float) -> None:
        before = {side: view.cursor for side, view in self.views.items()}
        strangers = 0
        for side, patience_s in ((Side.A, wait_s), (Side.B, 0.0)):
            after = self.views[side].cursor if side in self.views else 0
            target = f"{self.path(paths.VIEW)}?after={after}&wait_s={patience_s}"
            answer = await self.ask(side, "GET", target, b"", "view")
            strangers += answer.status_code == _STRANGER
            if answer.is_success:
                self.journal.let_in = True
                self.views[side] = StudyView.parse(answer.content)
                await self._catch_up(side, self.views[side].roster_changes)
        if strangers == len(Side) and self.journal.let_in:
            self.journal.ended = "removed: both servers know this site no more"
        if before != {side: view.cursor for side, view in self.views.items()}:
            self._quiet = 0
        else:
            await self.rest()

    async def _catch_up(self, side: Side, number: int) -> None:
        """Every link of the roster that a server has and this site has not."""
        while self.journal.chain.number < number:
            held = self.journal.chain
            target = paths.fill(paths.ROSTER_CHANGE, number=held.number + 1)
            answer = await self.ask(side, "GET", target, b"", "roster")
            if not answer.is_success:
                return
            try:
                self.journal.chain = held.extended_by(Signed[RosterChange].parse(answer.content))
            except MoietyError as error:
                self.wrong.append(f"another roster: server {side.value} shows {self.name} {error.detail}")
                return

    def current(self) -> dict[Side, RoundView]:
        """Both servers' view of one attempt; nothing while they speak of different ones."""
        found = {side: view.current for side, view in self.views.items() if view.current is not None}
        places = {(one.round, one.attempt) for one in found.values()}
        return found if len(found) == len(Side) and len(places) == 1 else {}

    # --- a round ---

    async def act(self) -> None:
        """Do what the views ask for."""
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
        return self.script.update(self.name, number)

    def agrees(self, announcement: Announcement) -> bool:
        """Return whether it may be summed with those on the list, now and whenever it is asked again."""
        number, journal = announcement.round, self.journal
        if journal.hiding is None or number in journal.agreed or number in journal.declined:
            return number not in journal.declined
        agreed = self.name in announcement.listed and journal.hiding.agrees(announcement, self.script.told)
        (journal.agreed if agreed else journal.declined).add(number)
        return agreed

    async def contribute(self, side: Side, view: RoundView) -> None:
        announcement, attempt = view.announcement.message, view.attempt
        if announcement.roster_head not in (None, *self.journal.chain.digests) or not self.agrees(announcement):
            return
        name = f"contribution {view.round} {attempt}"
        both = self._shares(announcement, attempt, name)
        target = self.path(paths.CONTRIBUTION, round=view.round, attempt=attempt)
        if await self.once(f"{name} {side.value}", side, "PUT", target, lambda: both[side]):
            receipt = Signed[Receipt].parse(self.journal.acknowledged[f"{name} {side.value}", side]).message
            if (receipt.site, receipt.round, receipt.attempt) != (self.name, view.round, attempt):
                self.wrong.append(f"wrong receipt: {self.name} for {name}")

    def _shares(self, announcement: Announcement, attempt: int, name: str) -> dict[Side, bytes]:
        return self.made(name, self.update(announcement.round), announcement, attempt)

    def made(self, name: str, update: Ring, announcement: Announcement, attempt: int) -> dict[Side, bytes]:
        """A whole contribution of an update, the same whenever it is asked for."""
        sent = self.journal.sent
        if f"{name} a" not in sent:
            rand = derive(hashlib.sha256(f"{self.name} {name}".encode()).digest(), "share")
            found = honest_contribution(update, announcement, self.name, self.roster_of(announcement), rand, attempt)
            sent.update({f"{name} {side.value}": found[side].sealed() for side in Side})
        return {side: sent[f"{name} {side.value}"] for side in Side}

    def roster_of(self, announcement: Announcement) -> Roster:
        """Under which the round runs. Requires: this site has that link"""
        return self.journal.chain.roster_under(announcement.roster_head)

    async def take_sum(self) -> None:
        """Take the sum of the latest round that a server calls released, once both serve it."""
        views = self.current()
        states = {view.state for view in views.values()}
        for view in list(views.values())[:1]:
            if RoundState.RELEASED in states and states & {RoundState.SKIPPED, RoundState.BURNT}:
                self.wrong.append(f"two ends: round {view.round}, released at one server and not at the other")
            if states == {RoundState.SKIPPED}:
                self.journal.over.setdefault(view.round, "skipped")
                if self.journal.hiding is not None:
                    self.journal.hiding.drop(self.study.digest(), view.round)
            if states == {RoundState.RELEASED} and view.round not in self.journal.sums:
                await self._open(view)

    async def _open(self, view: RoundView) -> None:
        halves = {}
        for side in Side:
            answer = await self.ask(side, "GET", self.path(paths.OUTPUT, round=view.round), b"", "output")
            if not answer.is_success:
                return
            header, halves[side] = opened(answer.content, self.keys.sealing, OutputHeader)
            if header.recipient != self.me.key_id:
                self.wrong.append(f"wrong output: of round {view.round} for {self.name}")
        masks = masking_side(view.round)
        vector = from_bytes(halves[masks.other], self.study.parameters.dimension)
        total = open_output_chunk(vector, halves[masks], 0)
        sites = () if view.release_set is None else view.release_set.message.sites
        self.journal.sums[view.round] = (tuple(sites), total.tobytes())
        self.journal.over[view.round] = "released"
        if self.journal.hiding is not None:
            self.journal.hiding.settle(self.study.digest(), view.round, tuple(sites))


_ANOTHER: Final = "another"
_FACE: Final = "face"
_AFTER: Final = frozenset({Lie.ANOTHER_FOR_THE_SAME, Lie.DOUBLED, Lie.TWO_FACES})
"""Lies that come once the site's own contribution is taken."""


class LyingSite(ScriptedSite):
    """Tells its ``lies``, if any, once per attempt and server; ``told`` counts them."""

    lies: frozenset[Lie] = frozenset()
    told: Counter[str]

    async def contribute(self, side: Side, view: RoundView) -> None:
        if view.announcement.message.roster_head not in (None, *self.journal.chain.digests):
            return
        place = f"{view.round} {view.attempt} {side.value}"
        for lie in sorted(self.lies - _AFTER):
            await self._tell(lie, side, view, place)
        await super().contribute(side, view)
        if (f"contribution {place}", side) in self.journal.acknowledged:
            for lie in sorted(self.lies & _AFTER):
                await self._tell(lie, side, view, place)

    def _shares(self, announcement: Announcement, attempt: int, name: str) -> dict[Side, bytes]:
        """A two-faced site sends server B a sound share of another update: what is sent stands in the journal."""
        made = super()._shares(announcement, attempt, name)
        if Lie.TWO_FACES in self.lies:
            made[Side.B] = self._another(_FACE, announcement, attempt)[Side.B]
            self.journal.sent[f"{name} {Side.B.value}"] = made[Side.B]
        return made

    def _another(self, name: str, announcement: Announcement, attempt: int) -> dict[Side, bytes]:
        """A sound contribution of another update, one for each name."""
        later = announcement.round + (200 if name == _FACE else 100)
        update = self.update(announcement.round) + self.update(later)
        return self.made(f"{name} {announcement.round} {attempt}", update, announcement, attempt)

    async def _tell(self, lie: Lie, side: Side, view: RoundView, place: str) -> None:
        if self.journal.sent.setdefault(f"lie {lie} {place}", b"") != b"":
            return
        if lie is not Lie.TWO_FACES:  # its shares are all that it says
            method, target, body = self._words(lie, side, view)
            try:
                answer = await self.ask(side, method, target, body, "lie")
            except httpx.TransportError:
                return
            if answer.is_success and lie is not Lie.DOUBLED:
                self.wrong.append(f"took a lie: server {side.value} took {lie.value} of {self.name}")
        self.journal.sent[f"lie {lie} {place}"] = b"told"
        self.told[f"lie: {lie}"] += 1

    def _words(self, lie: Lie, side: Side, view: RoundView) -> tuple[str, str, bytes]:
        """Method, address and body."""
        number, attempt = view.round, view.attempt
        match lie:
            case Lie.AS_REQUESTER:
                return "PUT", self.path(paths.RELEASE_SET, round=number, attempt=attempt), self._choice(view)
            case Lie.ENDS_THE_STUDY:
                return "POST", self.path(paths.END), self._end()
        address = {
            Lie.OTHER_ROUND: (self.study.name, number + 1, attempt),
            Lie.OTHER_ATTEMPT: (self.study.name, number, attempt + 1),
            Lie.OTHER_STUDY: (_ANOTHER, number, attempt),
        }
        study, to_round, to_attempt = address.get(lie, (self.study.name, number, attempt))
        target = paths.fill(paths.CONTRIBUTION, study=study, round=to_round, attempt=to_attempt)
        return "PUT", target, self._share(lie, side, view)

    def _share(self, lie: Lie, side: Side, view: RoundView) -> bytes:
        announcement, attempt = view.announcement.message, view.attempt
        if lie is Lie.ANOTHER_FOR_THE_SAME:
            return self._another(_ANOTHER, announcement, attempt)[side]
        both = self._shares(announcement, attempt, f"contribution {view.round} {attempt}")
        if lie is Lie.MALFORMED:
            half = len(both[side]) // 2
            return both[side][:half] + bytes(len(both[side]) - half)
        return both[side.other if lie is Lie.OTHER_SIDE else side]

    def _choice(self, view: RoundView) -> bytes:
        message = ReleaseSet(
            study_digest=self.study.digest(),
            round=view.round,
            attempt=view.attempt,
            agreed_set_digest="00" * 32,
            sites=(self.name, self.roster.requester),
        )
        return sign(message, self.name, self.keys.signing).canonical()

    def _end(self) -> bytes:
        ended, cause = StudyEndState.FAILED, EndCause.PROTOCOL_BROKEN
        message = StudyEnd(study_digest=self.study.digest(), state=ended, cause=cause, reason="a contributor says so")
        return sign(message, self.name, self.keys.signing).canonical()
