"""Both servers with scripted sites under faults, on one event loop: a schedule has one order of events."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Final
from unittest import mock

from harness.faults.isolation import Hiding, Observer, update_of
from harness.faults.prepared_servers import (
    DIMENSION,
    SITES,
    RosterFiles,
    federation,
)
from harness.faults.promises import SignedOnce, Watch
from harness.faults.schedule import (
    NEWCOMER,
    SERVERS,
    Crashed,
    Disks,
    FaultyNetwork,
    Lies,
    Migrated,
    Party,
    RosterChanged,
    Schedule,
    Timed,
)
from harness.faults.scripted_requester import PLAIN, ScriptedRequester
from harness.faults.scripted_sites import Journal, LyingSite, Script, ScriptedSite
from harness.faults.server_pair import Pair
from harness.faults.simulation import WITHIN_S, Action, Simulated, Simulation
from harness.federation.clocks import at_once
from protocol.sharing import Side

_ROUNDS: Final = 2
_LEAST: Final = 1
_ROUNDS_WITH_DEMANDS: Final = 3
_LEAST_WITH_DEMANDS: Final = 2
_ROSTER_LOOKED_AT_EVERY_S: Final = 1.0
"""Ten times as often as servers do, since a round takes a few seconds here."""
_DATABASE_LOOKED_AT_EVERY_S: Final = 60.0
"""More rarely than servers do: no older database takes the place of one that is served from here."""
_FOLLOWED_WITHIN_S: Final = 120.0


class ServersAlone(Simulation):
    """A study of scripted sites; it stops as soon as a promise does not hold."""

    def __init__(self, schedule: Schedule, network: FaultyNetwork) -> None:
        made = federation()
        made.clean()
        self.network, self.schedule = network, schedule
        crashes = [one for one in schedule.faults if isinstance(one, Crashed)]
        self.crashes: dict[tuple[Party, str, int], Crashed] = {
            (one.who, one.point, one.of_point): one for one in crashes
        }
        self.pair = Pair(made, network, self._at_point)
        self.clock, self.loop, self.off_s = self.pair.clock, self.pair.loop, self.pair.off_s
        smooth = 0.0 if schedule.smooth is None else schedule.smooth
        self._update = update_of(smooth, DIMENSION)
        observer = None if schedule.smooth is None else Observer(self._update, SITES[0])
        self.watch, self.signed = Watch(self.pair, observer=observer), SignedOnce(when_it_leaves=True)
        self.pair.on_sent = self.signed.left
        self.pair.on_start, self.pair.on_answer = self.watch.started, self.watch.repeats.answered
        self.disks = Disks({who: made.settings[side].data_dir.parent for who, side in SERVERS.items()})
        self.wrong: list[str] = []
        self._made, self.rosters = made, RosterFiles(made)
        rounds, least = (_ROUNDS, _LEAST) if observer is None else (_ROUNDS_WITH_DEMANDS, _LEAST_WITH_DEMANDS)
        self._script = Script(made.study(rounds, least), self._update, {})
        names = (SITES[0], *PLAIN) if observer is None else SITES
        self.sites = {name: self._site(name, Journal(made.first)) for name in names}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._away: Counter[str] = Counter()

    def _site(self, name: Party, journal: Journal) -> ScriptedSite:
        """Begins, or goes on with what is on its disk."""
        if self.schedule.smooth is not None:
            journal.hiding = Hiding(self._made.state, name, self._update, SITES[0])
        kind = ScriptedRequester if name == SITES[0] else LyingSite
        site = kind(self.pair, self._script, self._made.party_of(name), self._made.keys_of(name), journal, self.wrong)
        if isinstance(site, ScriptedRequester):  # gives up only when the accidents are long over
            ends_s = (one.at_s + (one.for_s or 0.0) for one in self.schedule.timed)
            site.accidents_until_s = max(ends_s, default=0.0)
        elif isinstance(site, LyingSite):
            told = [one.lies for one in self.schedule.faults if isinstance(one, Lies) and one.who == name]
            site.lies, site.told = frozenset(lie for lies in told for lie in lies), self.network.injected
        return site

    def run(self) -> Simulated:
        with ExitStack() as stack:
            if self.schedule.smooth is not None:
                less = mock.patch("servers.background.duties._ROSTER_LOOKED_AT_EVERY_S", _ROSTER_LOOKED_AT_EVERY_S)
                stack.enter_context(less)
            rarely = mock.patch("servers.background.duties._DATABASE_LOOKED_AT_EVERY_S", _DATABASE_LOOKED_AT_EVERY_S)
            stack.enter_context(rarely)
            watching = (self.watch.watching(), self.signed.watching(), self.pair.light_peers())
            for one in (*watching, self.pair.power.watched(), self.disks.watched()):
                stack.enter_context(one)
            stack.enter_context(mock.patch("anyio.to_thread.run_sync", at_once))
            stack.enter_context(mock.patch("servers.server.upgrade", self.pair.upgrade))
            stack.callback(self.loop.close)
            stack.enter_context(self.clock.outside())
            try:
                self.loop.run_until_complete(self._study())
                failed = tuple(dict.fromkeys(self._failed()))
            finally:
                self.loop.run_until_complete(self._stop())
        return self.result({site.journal.ended for site in self.sites.values()}, failed)

    async def _study(self) -> None:
        for side in (Side.B, Side.A):
            self.pair.start(side)
        for name in self.sites:
            self._start(name)
        self.foresee()
        deadline = self.clock.monotonic() + WITHIN_S
        while self.clock.monotonic() < deadline and not (self._over() or self._broken()):
            await asyncio.sleep(1.0)
            for task in self._running.values():
                if task.done() and not task.cancelled():
                    task.result()
        deadline = self.clock.monotonic() + _FOLLOWED_WITHIN_S
        while self._behind() and self.clock.monotonic() < deadline and not self._broken():
            await asyncio.sleep(1.0)

    def _over(self) -> bool:
        return all(site.journal.ended for site in self._staying())

    def _staying(self) -> list[ScriptedSite]:
        """Everybody who is to hear how the study ended: who is not gone, not removed, and was ever let in."""
        gone = self.schedule.gone | self.schedule.removed
        return [s for name, s in self.sites.items() if name not in gone and (name != NEWCOMER or s.journal.let_in)]

    def _behind(self) -> list[str]:
        """Servers that live, can write, and do not have the roster that was put in place."""
        return [
            who
            for who, side in SERVERS.items()
            if side in self.pair.living
            and not self.disks.full[who]
            and self.pair.apps[side].state.server.chain.number != self.rosters.given[side].number
        ]

    def _broken(self) -> bool:
        """A promise did not hold: there is nothing to wait for."""
        return bool(
            self.wrong
            or self.pair.errors
            or self.watch.repeats.broken
            or self.watch.broken
            or self.signed.twice
            or any(self.watch.correlations())
        )

    async def _stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.pair.close()

    def _failed(self) -> list[str]:
        wrong = [*self.wrong, *(f"signed twice: {one}" for one in sorted(set(self.signed.twice)))]
        if not self._broken():
            wrong += [f"no end: {site.name}" for site in self._staying() if not site.journal.ended]
            wrong += [f"roster: {who} does not follow its file" for who in self._behind()]
            requester = self.sites[SITES[0]].journal.ended
            wrong += [f"stuck: {requester}"] if "failed" in requester else []
        return [*wrong, *self.watch.at_the_end(list(self.sites.values()))]

    # --- faults ---

    def _at_point(self, side: Side, point: str, number: int) -> float | None:
        fault = self.crashes.get((f"server {side.value}", point, number))
        if fault is None:
            return None
        self.network.injected[f"crash at {point}"] += 1
        return fault.for_s

    def later(self, at_s: float, action: Action) -> None:
        self.loop.call_later(at_s, action)

    def strike(self, fault: Timed, *, begins: bool) -> None:
        match fault:
            case RosterChanged(adds=adds, first=first):
                if not begins:
                    self.rosters.give(first.other)
                    return
                self.rosters.change(fault)
                if adds and adds not in self.sites:
                    self.sites[adds] = self._site(adds, Journal(self._made.first))
                    self._start(adds)
            case Migrated(who=server):
                if begins:
                    self.goes(server)
                else:
                    self.pair.of_schema_before.add(SERVERS[server])
                    self.comes_back(server)
            case _:
                super().strike(fault, begins=begins)

    def _start(self, name: str) -> None:
        self._running[name] = self.pair.task(self.sites[name].run(), None)

    def goes(self, party: Party) -> None:
        if party in SERVERS:
            self.pair.goes(SERVERS[party])
            return
        self._away[party] += 1
        self._running[party].cancel()

    def comes_back(self, party: Party) -> None:
        if party in SERVERS:
            self.pair.comes_back(SERVERS[party])
            return
        self._away[party] -= 1
        if not self._away[party]:
            self.sites[party] = self._site(party, self.sites[party].journal)
            self._start(party)
