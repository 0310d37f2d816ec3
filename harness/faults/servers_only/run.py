"""One study of the servers under a schedule: ``studied`` draws it from a seed, ``restudied`` runs one again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

from harness.faults.disks import Disks
from harness.faults.network import FaultyNetwork
from harness.faults.schedule import (
    Away,
    Crashed,
    Full,
    Level,
    Lies,
    Migrated,
    Parted,
    Party,
    Schedule,
    Stepped,
    Timed,
)
from harness.faults.servers_only.drawn import DrawnForServers
from harness.faults.servers_only.lying import LyingSite
from harness.faults.servers_only.pair import Pair
from harness.faults.servers_only.parties import Journal, ScriptedSite
from harness.faults.servers_only.requester import ScriptedRequester
from harness.faults.servers_only.still import StillClock, StillLoop, at_once
from harness.faults.servers_only.watch import Watch
from harness.faults.signed_once import SignedOnce
from harness.faults.simulated import MEMORY, Simulated
from harness.federation.memory.learners import light_sites
from harness.federation.processes import FederationSpec, RunningFederation
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from protocol.wire.messages import LayerShape, ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from servers.server import open_server
from servers.settings import ServerSettings, load_settings

SITES: Final = ("requester", "c1", "c2")
NAME: Final = "servers"
_ROUNDS: Final = 2
_DIMENSION: Final = 16
_LEAST: Final = 1
_DEADLINE_S: Final = 90.0
"""Shorter than many absences: rounds end in every way there is."""
_WITHIN_S: Final = 6 * 3600.0
_SERVERS: Final = {f"server {side.value}": side for side in Side}


class _Federation:
    """Keys, settings and fresh databases, made once in a process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moiety-servers-", dir=MEMORY if MEMORY.is_dir() else None)
        spec = FederationSpec("servers", SITES[0], light_sites(SITES), seed=5)
        self.made = RunningFederation(spec, Path(self._folder.name))
        roster = self.made.parties.roster.message
        self.settings: dict[Side, ServerSettings] = {
            side: load_settings(self.made.config(roster.operator(side).name)) for side in Side
        }
        self._fresh = {side: one.data_dir.with_name("fresh") for side, one in self.settings.items()}
        for side, one in self.settings.items():
            open_server(one).store.close()  # runs the migrations
            shutil.copytree(one.data_dir, self._fresh[side])

    def clean(self) -> None:
        for side, one in self.settings.items():
            shutil.rmtree(one.data_dir)
            shutil.copytree(self._fresh[side], one.data_dir)

    def study(self) -> Study:
        return Study(
            name=NAME,
            roster_digest=self.made.parties.roster.message.digest(),
            parameters=StudyParameters(
                dimension=_DIMENSION, clip_norm=1.0, weight_grid=4, least_contributors=_LEAST, encoded_norm_log2=21
            ),
            rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
            model=ModelSpec(kind="linear", layers=(LayerShape(name="w", shape=(_DIMENSION,)),)),
            training=TrainingSpec(),
            rounds=_ROUNDS,
            round_deadline_s=_DEADLINE_S,
        )


@cache
def _federation() -> _Federation:
    return _Federation()


def studied(seed: int) -> Simulated:
    """Run what a seed draws."""
    drawn = DrawnForServers.of(seed)
    schedule = Schedule(seed=seed, delays_s=drawn.delays_s, level=Level.SERVERS, faults=drawn.accidents)
    network = FaultyNetwork(schedule, drawn.fate)
    found = restudied(schedule, network)
    whole = schedule.model_copy(update={"faults": (*network.found, *drawn.accidents)})
    return Simulated(seed, found.steps, found.injected, found.ends, whole, found.failed)


def restudied(schedule: Schedule, network: FaultyNetwork | None = None) -> Simulated:
    """Run a schedule that is written down."""
    made = _federation()
    made.clean()
    studying = _Studying(made, schedule, network or FaultyNetwork(schedule))
    return studying.run()


def _requester(schedule: Schedule) -> type[ScriptedRequester]:
    """One that gives up only when the accidents are long over."""
    until_s = max((one.at_s + (one.for_s or 0.0) for one in schedule.timed), default=0.0)
    return type("Requester", (ScriptedRequester,), {"accidents_until_s": until_s})


class _Studying:
    def __init__(self, made: _Federation, schedule: Schedule, network: FaultyNetwork) -> None:
        self.clock = StillClock()
        self.loop = StillLoop(self.clock)
        self.network, self.schedule = network, schedule
        self.crashes = {(one.who, one.point, one.of_point): one for one in schedule.faults if isinstance(one, Crashed)}
        parties = made.made.parties
        self.pair = Pair(made.settings, parties, self.clock, self.loop, network, self._at_point)
        self.watch, self.signed = Watch(self.pair), SignedOnce()
        self.pair.on_start = self.watch.started
        self.disks = Disks({who: made.settings[side].data_dir.parent for who, side in _SERVERS.items()})
        self.wrong: list[str] = []
        study = made.study()
        kinds: dict[str, type[ScriptedSite]] = {name: self._contributor(name) for name in SITES[1:]}
        kinds[SITES[0]] = _requester(schedule)
        self._make = {
            name: lambda journal, name=name: kinds[name](self.pair, study, parties.keys_of(name), journal, self.wrong)
            for name in SITES
        }
        self.sites = {name: self._make[name](Journal()) for name in SITES}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._away: Counter[str] = Counter()

    def _contributor(self, name: str) -> type[ScriptedSite]:
        lies = frozenset(
            lie for one in self.schedule.faults if isinstance(one, Lies) and one.who == name for lie in one.lies
        )
        told = staticmethod(lambda lie: self.network.injected.update({f"lie: {lie}": 1}))
        return type("Liar", (LyingSite,), {"lies": lies, "told": told}) if lies else ScriptedSite

    def run(self) -> Simulated:
        with ExitStack() as stack:
            watching = (self.watch.watching(), self.signed.watching(), self.pair.light_peers())
            for one in (*watching, self.pair.power.watched(), self.disks.watched()):
                stack.enter_context(one)
            stack.enter_context(mock.patch("anyio.to_thread.run_sync", at_once))
            stack.enter_context(mock.patch("servers.server.upgrade", self.pair.upgrade))
            stack.callback(self.loop.close)
            try:
                self.loop.run_until_complete(self._study())
                failed = tuple(dict.fromkeys(self._failed()))
            finally:
                self.loop.run_until_complete(self._stop())
        ends = tuple(sorted({site.journal.ended for site in self.sites.values()}))
        if self.disks.refused:
            self.network.injected["write refused"] += self.disks.refused
        steps, injected = self.network.steps, self.network.injected
        return Simulated(self.schedule.seed, steps, injected, ends, self.schedule, failed)

    async def _study(self) -> None:
        for side in (Side.B, Side.A):
            self.pair.start(side)
        for name in SITES:
            self._start(name)
        for fault in self.schedule.timed:
            self._foresee(fault)
        deadline = self.clock.monotonic() + _WITHIN_S
        while self.clock.monotonic() < deadline and not (self._over() or self._broken()):
            await asyncio.sleep(1.0)
            for task in self._running.values():
                if task.done() and not task.cancelled():
                    task.result()

    def _over(self) -> bool:
        return all(site.journal.ended for name, site in self.sites.items() if name not in self.schedule.gone)

    def _broken(self) -> bool:
        """A promise did not hold: there is nothing to wait for."""
        return bool(
            self.wrong
            or self.pair.errors
            or self.pair.repeats.broken
            or self.watch.broken
            or any(self.watch.correlations())
        )

    async def _stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.pair.close()

    def _failed(self) -> list[str]:
        staying = {n: s.journal.ended for n, s in self.sites.items() if n not in self.schedule.gone}
        twice = [f"signed twice: {one}" for one in sorted(set(self.signed.twice))]
        if self._broken():
            return [*self.wrong, *twice, *self.watch.at_the_end(list(self.sites.values()))]
        ends = [f"no end: {name}" for name, ended in staying.items() if not ended]
        stuck = [f"stuck: {self.sites[SITES[0]].journal.ended}"] if "failed" in staying.get(SITES[0], "") else []
        return [*ends, *stuck, *self.wrong, *self.watch.at_the_end(list(self.sites.values()))]

    # --- faults ---

    def _at_point(self, side: Side, point: str, number: int) -> float | None:
        fault = self.crashes.get((f"server {side.value}", point, number))
        if fault is None:
            return None
        self.network.injected[f"crash at {point}"] += 1
        return fault.for_s

    def _foresee(self, fault: Timed) -> None:
        begins, ends = self._actions(fault)

        def begin() -> None:
            self.network.injected[fault.fault] += 1
            begins()

        self.loop.call_later(fault.at_s, begin)
        if fault.for_s is not None:
            self.loop.call_later(fault.at_s + fault.for_s, ends)

    def _actions(self, fault: Timed) -> tuple[Callable[[], Any], Callable[[], Any]]:
        match fault:
            case Away(who=who):
                return lambda: self._all(self._goes, who), lambda: self._all(self._comes_back, who)
            case Migrated(who=who):
                return lambda: self._goes(who), lambda: self._comes_back_migrated(who)
            case Parted(sender=sender, to=to):
                return lambda: self._count(self.network.parted, (sender, to), 1), lambda: self._count(
                    self.network.parted, (sender, to), -1
                )
            case Full(who=who):
                return lambda: self._count(self.disks.full, who, 1), lambda: self._count(self.disks.full, who, -1)
            case Stepped(who=who, by_s=by_s):
                return lambda: self._step(who, by_s), lambda: self._step(who, -by_s)

    def _all(self, does: Callable[[Party], None], who: tuple[Party, ...]) -> None:
        for party in who:
            does(party)

    def _count(self, counter: Counter[Any], key: object, by: int) -> None:
        counter[key] += by

    def _step(self, who: Party, by_s: float) -> None:
        self.pair.off_s[who] = self.pair.off_s.get(who, 0.0) + by_s

    def _start(self, name: str) -> None:
        self._running[name] = self.pair.task(self.sites[name].run(), None)

    def _goes(self, who: Party) -> None:
        if who in _SERVERS:
            self.pair.goes(_SERVERS[who])
            return
        self._away[who] += 1
        self._running[who].cancel()

    def _comes_back_migrated(self, who: Party) -> None:
        self.pair.of_schema_before.add(_SERVERS[who])
        self._comes_back(who)

    def _comes_back(self, who: Party) -> None:
        if who in _SERVERS:
            self.pair.comes_back(_SERVERS[who])
            return
        self._away[who] -= 1
        if not self._away[who]:
            self.sites[who] = self._make[who](self.sites[who].journal)
            self._start(who)
