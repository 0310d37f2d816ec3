"""A scripted requester: creates the study, announces, asks, opens, names who is released, and ends the study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import httpx

from harness.attack.forgeries import release_set
from harness.attack.scripted_requester import sealed_queries
from harness.attack.signed_client import opened
from harness.faults.isolation import Told
from harness.faults.scripted_sites import ScriptedSite
from harness.federation.clocks import START_S
from protocol.errors import ProtocolViolation
from protocol.messages import paths
from protocol.messages.bodies import read_opening
from protocol.messages.control import (
    Announcement,
    EndCause,
    OpeningHeader,
    RoundState,
    RoundView,
    Signed,
    StudyEnd,
    StudyEndState,
    sign,
)
from protocol.mpc.measurement import open_all
from protocol.parameters import Needs
from protocol.sharing import Side

PLAIN: Final = ("c1", "c2")
"""Contributors where nobody demands anything of sums."""
_GRID = 4
_GIVES_UP_S = 1200.0
"""Servers that have not ended a round so long after it began and after the last accident are stuck."""


class ScriptedRequester(ScriptedSite):
    """Goes on with the round that its journal has not seen the end of."""

    closes_in_s = 30.0
    accidents_until_s = 0.0
    """On the clock of all, from the start of the study."""

    def agrees(self, announcement: Announcement) -> bool:
        """It asked for it."""
        return True

    async def run(self) -> None:
        signed = sign(self.study, self.name, self.keys.signing).canonical()
        for side in Side:
            await self._until(f"study {side.value}", side, paths.STUDIES, signed)
        if "end" not in self.journal.sent:
            await self._rounds()
        state, cause, reason = self._end()
        message = StudyEnd(study_digest=self.study.digest(), state=state, cause=cause, reason=reason)
        if "end" not in self.journal.sent:
            self.journal.sent["end"] = sign(message, self.name, self.keys.signing).canonical()
        for side in Side:
            await self._until("end", side, self.path(paths.END), self.journal.sent["end"])
        self.journal.ended = f"{state.value}: {reason}"

    def _end(self) -> tuple[StudyEndState, EndCause, str]:
        if self._all_over():
            return StudyEndState.COMPLETED, EndCause.ALL_ROUNDS_DONE, "all rounds are done"
        if f"announce {len(self.journal.over) + 1}" not in self.journal.sent:
            return StudyEndState.LOCAL_ONLY, EndCause.ISOLATION, "no list is left that shows no site's update"
        return StudyEndState.FAILED, EndCause.PROTOCOL_BROKEN, "the servers did not end a round in hours"

    def _all_over(self) -> bool:
        return len(self.journal.over) >= self.study.rounds

    async def _until(self, name: str, side: Side, target: str, body: bytes) -> None:
        while True:
            try:
                if await self.once(name, side, "POST", target, lambda: body):
                    return
            except httpx.TransportError:
                pass
            await self.rest()

    async def _rounds(self) -> None:
        while not self._all_over():
            number = len(self.journal.over) + 1
            name = f"announce {number}"
            if name not in self.journal.sent:
                if any(view.roster_changes < self.journal.chain.number for view in self.views.values()):
                    await self._look()
                    continue
                announcement = self._announcement(number)
                if announcement is None:
                    return
                self.journal.sent[name] = sign(announcement, self.name, self.keys.signing).canonical()
                self.journal.sent[f"began {number}"] = str(self.pair.clock.now()).encode()
            since_s = max(float(self.journal.sent[f"began {number}"]), START_S + self.accidents_until_s)
            if self.pair.clock.now() > since_s + _GIVES_UP_S:
                return
            try:
                await self._round(number, name)
            except httpx.TransportError:
                await self.rest()

    async def _look(self) -> None:
        """A server does not have the newest roster yet."""
        try:
            await self.look(2.0)
        except httpx.TransportError:
            await self.rest()

    def _announcement(self, number: int) -> Announcement | None:
        """Announce the first list that shows nobody's update; None where there is none."""
        hiding = self.journal.hiding
        for listed, least in self._lists(number):
            if len(listed) < max(least, self.study.parameters.least_contributors):
                continue
            found = self._of(number, listed, least)
            if hiding is None or hiding.proposes(found):
                return found
        return None

    def _lists(self, number: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """Everybody, then whoever was in the last sum; with the number listed as the least one after a sum."""
        known, least = {party.name for party in self.roster.contributors}, self.study.parameters.least_contributors
        if self.journal.hiding is None:
            yield tuple(name for name in PLAIN if name in known), least
            return
        everybody = tuple(party.name for party in self.roster.contributors)
        last = [sites for _, (sites, _) in sorted(self.journal.sums.items())][-1:]
        if number == 1 or self.journal.over[number - 1] == "skipped":
            yield everybody, least
        yield everybody, len(everybody)
        for sites in last:
            still = tuple(site for site in sites if site in known)
            yield still, len(still)

    def _of(self, number: int, listed: tuple[str, ...], least: int) -> Announcement:
        return Announcement(
            study_digest=self.study.digest(),
            round=number,
            listed=listed,
            least_contributors=least,
            opens=Needs.DISTANCES,
            model_version=len(self.journal.sums),
            model_digest="00" * 32,
            weight_list_digest="11" * 32,
            closes_at_s=int(self.pair.clock.now() + self.closes_in_s),
            roster_head=self.journal.chain.named_head,
        )

    async def take_sum(self) -> None:
        """Whoever was not there is told of it."""
        await super().take_sum()
        for number in self.journal.sums.keys() - self.script.told.keys():
            announced = Signed[Announcement].parse(self.journal.sent[f"announce {number}"]).message
            sites = tuple(site for site in self.journal.sums[number][0] if site != self.name)
            self.script.told[number] = Told(announced, sites)

    async def _round(self, number: int, name: str) -> None:
        """One look at where it stands, and what that asks for."""
        for side in Side:
            await self.once(name, side, "POST", self.path(paths.ANNOUNCEMENT, round=number), lambda: b"")
        await self.look(2.0)
        await self.act()
        views = self.current()
        if not views or views[Side.A].round != number:
            return
        view = views[Side.A]
        both = {one.state for one in views.values()}
        if view.state is RoundState.LOCKED and view.transcript is not None and len(view.transcript.signatures) > 1:
            await self._query(view)
        if both == {RoundState.MEASURED}:
            await self._release(view)

    async def _query(self, view: RoundView) -> None:
        name = f"queries {view.round} {view.attempt}"
        if all((f"{name} {side.value}", side) in self.journal.acknowledged for side in Side):
            return
        if f"{name} a" not in self.journal.sent:
            own, under = self.update(view.round), self.roster_of(view.announcement.message)
            for side, body in sealed_queries(view, self.study, own, None, self.roster, under)[1].items():
                self.journal.sent[f"{name} {side.value}"] = body
        target = self.path(paths.QUERIES, round=view.round, attempt=view.attempt)
        for side in Side:
            await self.once(f"{name} {side.value}", side, "POST", target, lambda: b"")

    async def _release(self, view: RoundView) -> None:
        name = f"release {view.round} {view.attempt}"
        if name not in self.journal.sent:
            shares = {}
            for side in Side:
                target = self.path(paths.OPENING, round=view.round, attempt=view.attempt)
                answer = await self.ask(side, "GET", target, b"", "opening")
                if not answer.is_success:
                    return
                self._same(f"opening {view.round} {view.attempt} {side.value}", answer.content)
                header, _ = opened(answer.content, self.keys.sealing, OpeningHeader)
                shares[side] = read_opening(answer.content, header, self.name, self.keys.sealing)
            listed = {share.site: _GRID for share in shares[Side.A]}
            found = open_all(shares[Side.A], shares[Side.B], listed, self.study.parameters, Needs.DISTANCES)
            wrong = [one.site for one in found if not one.in_range]
            if wrong:
                self.wrong.append(f"wrong measurement: round {view.round} says that {wrong} are too long")
            agreed = view.agreed_set
            if agreed is None:
                raise ProtocolViolation(f"round {view.round} is measured and shows no agreed set")
            message = release_set(agreed.message, agreed.message.sites)
            self.journal.sent[name] = sign(message, self.name, self.keys.signing).canonical()
        target = self.path(paths.RELEASE_SET, round=view.round, attempt=view.attempt)
        for side in Side:
            await self.once(name, side, "PUT", target, lambda: b"")

    def _same(self, name: str, body: bytes) -> None:
        """Check that a server answers again what it has once answered."""
        if self.journal.sent.setdefault(name, body) != body:
            self.wrong.append(f"another answer: {name}")
