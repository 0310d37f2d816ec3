"""Promises of both servers' stores, answers and signatures, at every moment and at the end."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

import httpx
import numpy as np

from harness.faults.isolation import Observer
from harness.faults.schedule import Died
from harness.faults.scripted_sites import ScriptedSite
from harness.faults.server_pair import Pair
from harness.federation.clocks import SIDE
from protocol.arithmetic.ring import ELEMENT_BYTES, SEED_BYTES
from protocol.channel.keys import SigningKey
from protocol.messages import control
from protocol.messages.control import Message, Receipt, RoundOutcome, RoundState, ShareKind, Signature, Signed
from protocol.roster.chain import RosterChain
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.event_loop import Changes
from servers.server import Server
from servers.store.records import RoundRecord

_NOTIFY = Changes.notify
_NEXT = Changes.next
_MOST_LOOKS = 2000
"""At one moment of the clock; a study has some ten."""
_UNDONE = frozenset({RoundState.SKIPPED, RoundState.BURNT})
_DONE = frozenset({RoundState.RELEASED, RoundState.SKIPPED, RoundState.BURNT})


_KINDS: Final = frozenset(
    {"lock", "challenge", "products", "release_set", "contribution", "announce", "queries", "release", "end"}
)
_Standing = tuple[object, ...]


@dataclass
class Repeats:
    """``broken``: what was answered before and is refused now, or answered otherwise, each with its promise's name."""

    broken: list[str] = field(default_factory=list)
    _answered: dict[tuple[Side, str, str], tuple[_Standing, bytes]] = field(default_factory=dict)

    def answered(self, server: Server, request: httpx.Request, answer: httpx.Response) -> None:
        """A server has answered; one that has no room, or cannot reach its disk, may say so at any time."""
        kind = str(request.extensions["purpose"])
        if request.method == "GET" or kind not in _KINDS or answer.is_server_error:
            return
        place = (server.side, str(request.url), hashlib.sha256(request.content).hexdigest())
        standing, taken = _standing(server), answer.is_success
        if place not in self._answered:
            if taken:
                self._answered[place] = (standing, answer.content)
            return
        before, said = self._answered[place]
        if before == standing and (not taken or said != answer.content):
            self.broken.append(f"another answer: server {server.side.value} to the same {kind} in the same round")


def _standing(server: Server) -> _Standing:
    """Return the state of the newest round of every study."""
    found = [server.store.current_round(study.digest) for study in server.store.studies()]
    return tuple((one.key, one.state) for one in found if one is not None)


_PLACE: Final = ("study_digest", "round", "attempt", "site", "side", "recipient", "number")
_MADE: Final = control.signature_by
_VALUE: Final = re.compile(rb'"value":"([0-9a-f]{128})"')


@dataclass(frozen=True)
class _Signed:
    place: tuple[str, ...]
    digest: str

    @property
    def words(self) -> str:
        return f"{self.place[0]} signed two of {self.place[1]} for {'/'.join(self.place[3:5])}"


class SignedOnce:
    """A place: a signer, a kind of message, and which study, round and attempt it speaks of.

    ``when_it_leaves``: what was signed counts once it is in a body that ``left`` is told of. A server whose disk is
    full, or that dies, signs and forgets: it may sign something else later, since nobody has seen the first.
    """

    def __init__(self, *, when_it_leaves: bool = False) -> None:
        self.twice: list[str] = []
        self._signed: dict[tuple[str, ...], str] = {}
        self._here: dict[bytes, _Signed] | None = {} if when_it_leaves else None

    def left(self, body: bytes) -> None:
        """These bytes were sent, whether they arrive or not."""
        if self._here:
            for value in _VALUE.findall(body):
                found = self._here.pop(value, None)
                if found is not None:
                    self._counts(found)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with mock.patch.object(control, "signature_by", self._signature_by):
            yield

    def _signature_by(self, signer: str, key: SigningKey, message: Message) -> Signature:
        made = _MADE(signer, key, message)
        if hasattr(message, "study_digest"):
            places = (str(getattr(message, name, "")) for name in _PLACE)
            digest = hashlib.sha256(message.canonical()).hexdigest()
            found = _Signed((signer, message.KIND, *places, _end(message)), digest)
            if self._here is None:
                self._counts(found)
            else:
                self._here[made.value.encode()] = found
        return made

    def _counts(self, found: _Signed) -> None:
        if self._signed.setdefault(found.place, found.digest) != found.digest:
            self.twice.append(found.words)


def _end(message: Message) -> str:
    """A burn may be followed by a skip of the same attempt: B's opening undoes it (docs/protocol.md 7)."""
    return message.outcome.value if isinstance(message, RoundOutcome) else ""


@dataclass
class Watch:
    """``broken``: promises that did not hold at some moment, each with its name before a colon."""

    pair: Pair
    broken: list[str] = field(default_factory=list)
    observer: Observer | None = None
    repeats: Repeats = field(default_factory=Repeats)
    changes: int = 0
    _looks: int = 0
    _looks_at_s: float = 0.0
    _seen: dict[tuple[Side, RoundKey], RoundRecord] = field(default_factory=dict)
    _chains: dict[Side, RosterChain] = field(default_factory=dict)
    _removed: dict[tuple[Side, RoundKey], frozenset[str]] = field(default_factory=dict)
    _bodies: dict[tuple[Side, str], RoundKey] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        watch = self

        def notify(changes: Changes, study: str) -> None:
            side = SIDE.get()
            if side is not None:
                watch.pair.loop.call_soon(watch.look, side, study)
            _NOTIFY(changes, study)

        def following(changes: Changes, study: str) -> asyncio.Event:
            watch._rests()
            return _NEXT(changes, study)

        with mock.patch.object(Changes, "notify", notify), mock.patch.object(Changes, "next", following):
            yield

    def _rests(self) -> None:
        """Whoever waits for a change again and again, and never waits, would keep the clock from going on."""
        now_s = self.pair.clock.monotonic()
        self._looks = self._looks + 1 if now_s == self._looks_at_s else 0
        self._looks_at_s = now_s
        if self._looks > _MOST_LOOKS:
            self.broken.append("no rest: a server does the same again and again, without waiting")
            raise Died

    def look(self, side: Side, study: str) -> None:
        """At the round that a server has now."""
        self.changes += 1
        if side not in self.pair.living:
            return
        server: Server = self.pair.apps[side].state.server
        self._compare_chains(side, server.chain)
        record = server.store.current_round(study)
        if record is None:
            return
        before = self._seen.get((side, record.key))
        self._seen[side, record.key] = record
        if before is not None:
            self._compare(side, before, record)
        self._removed.setdefault((side, record.key), frozenset(one.name for one, _ in server.chain.removed()))
        if record.release_set is not None and (before is None or before.state is not record.state):
            self._look_at_cohort(server, record)
        other = self._seen.get((side.other, record.key))
        if other is not None:
            self._compare_sides(record, other)

    def _compare(self, side: Side, before: RoundRecord, now: RoundRecord) -> None:
        label = f"{now.key.label} at server {side.value}"
        if before.state in _DONE and now.state is not before.state:
            self.broken.append(f"two ends: {label} was {before.state.value} and is {now.state.value}")
        for name in ("agreed_set", "release_set"):
            was, is_now = getattr(before, name), getattr(now, name)
            if was is not None and (is_now is None or is_now.message != was.message):
                self.broken.append(f"taken back: {name} of {label}")
        for name in ("mask_seed", "own_nonce"):
            if getattr(before, name) is not None and getattr(now, name) != getattr(before, name):
                self.broken.append(f"drawn twice: {name} of {label}")

    def _compare_sides(self, one: RoundRecord, other: RoundRecord) -> None:
        states = {one.state, other.state}
        if RoundState.RELEASED in states and states & _UNDONE:
            self.broken.append(f"two ends: {one.key.label} released at one server and not at the other")
        for name in ("agreed_set", "release_set"):
            mine, theirs = getattr(one, name), getattr(other, name)
            if mine is not None and theirs is not None and mine.message != theirs.message:
                self.broken.append(f"two sets: {name} of {one.key.label}")

    def _compare_chains(self, side: Side, chain: RosterChain) -> None:
        """Neither server's roster is a fork of the other's, or older than it was."""
        before, other = self._chains.get(side, chain), self._chains.get(side.other, chain)
        if before is chain and side in self._chains:
            return
        self._chains[side] = chain
        if not chain.is_extension_of(before):
            self.broken.append(f"roster: server {side.value} went from change {before.number} to {chain.number}")
        if not (chain.is_extension_of(other) or other.is_extension_of(chain)):
            self.broken.append("roster: the servers have two that do not follow one another")

    def _look_at_cohort(self, server: Server, record: RoundRecord) -> None:
        """Whom a release names was in the round's roster, was not removed before it, and is in this sum alone."""
        sites = () if record.release_set is None else record.release_set.message.sites
        label = f"{record.key.label} at server {server.side.value}"
        roster = server.chain.roster_under(record.announcement.message.roster_head)
        if strangers := set(sites) - {party.name for party in roster.sites}:
            self.broken.append(f"cohort: {label} releases {sorted(strangers)}, whom its roster does not have")
        for side in Side:
            if gone := set(sites) & self._removed.get((side, record.key), frozenset()):
                self.broken.append(f"removed: {label} releases {sorted(gone)}, removed before it was announced")
        if len(set(sites)) != len(sites):
            self.broken.append(f"used twice: a contribution in {label}")
        for held in server.store.contributions(record.key):
            if self._bodies.setdefault((server.side, held.body_digest), record.key) != record.key:
                self.broken.append(f"used twice: the contribution of {held.site} in {label}, and in another round")
        if record.state is RoundState.RELEASED and self.observer is not None:
            self.broken.extend(self.observer.released(record.key.round, sites))

    def started(self, side: Side) -> None:
        """Check that everything a database names is on the disk, whole."""
        server: Server = self.pair.apps[side].state.server
        self._compare_chains(side, server.chain)
        for study in server.store.studies():
            record = server.store.current_round(study.digest)
            for held in [] if record is None else server.store.contributions(record.key):
                size = SEED_BYTES if held.header.share_kind is ShareKind.SEED else ELEMENT_BYTES * held.header.length
                file = None if held.file is None else server.files.path(held.file)
                if file is not None and (not file.exists() or file.stat().st_size != size):
                    self.broken.append(f"lost: the share of {held.site} in {held.key.label} at server {side.value}")

    # --- at the end ---

    def at_the_end(self, sites: list[ScriptedSite]) -> Iterator[str]:
        yield from self.broken
        yield from self.pair.errors
        yield from self.repeats.broken
        yield from self.correlations()
        for site in sites:
            yield from self._acknowledged(site)
            yield from self._sums(site, sites)

    def correlations(self) -> Iterator[str]:
        """Find what was measured twice, or with used correlations."""
        used: dict[str, str] = {}
        for one in self.pair.products_sent:
            if not one.marked:
                yield "unmarked: masked vectors left before their correlations were marked as used"
            if used.setdefault(one.label, one.digest) != one.digest:
                yield f"measured twice: {one.label}"
            if any(used.setdefault(ref, one.digest) != one.digest for ref in one.correlations):
                yield f"used twice: correlations of {one.label}"

    def _acknowledged(self, site: ScriptedSite) -> Iterator[str]:
        for (name, side), answer in site.journal.acknowledged.items():
            store = self.pair.apps[side].state.server.store
            study = store.study_named(site.study.name)
            words = name.split(" ")
            if study is None:
                yield f"lost: server {side.value} has no study that it acknowledged"
            elif words[0] == "contribution":
                receipt = Signed[Receipt].parse(answer).message
                held = store.contribution(RoundKey(study.digest, receipt.round, receipt.attempt), site.name)
                if held is None or held.body_digest != receipt.body_digest:
                    yield f"lost: server {side.value} gave {site.name} a receipt for {name}"
            elif words[0] == "announce" and store.latest_attempt(study.digest, int(words[1])) is None:
                yield f"lost: server {side.value} acknowledged round {words[1]}"
            elif words[0] == "release":
                record = store.round(RoundKey(study.digest, int(words[1]), int(words[2])))
                if record is None or (record.release_set is None and record.state not in _UNDONE):
                    yield f"lost: server {side.value} took the release set of round {words[1]}"
            elif words[0] == "end" and study.end is None:
                yield f"lost: server {side.value} took the study's end"

    def _sums(self, site: ScriptedSite, sites: list[ScriptedSite]) -> Iterator[str]:
        updates = {one.name: one for one in sites}
        for number, (summed, found) in site.journal.sums.items():
            total = np.zeros(site.study.parameters.dimension, dtype=np.uint64)
            for name in summed:
                total += updates[name].update(number)
            if total.tobytes() != found:
                yield f"another sum: round {number} at {site.name}"
            if {one.journal.sums[number][0] for one in sites if number in one.journal.sums} != {summed}:
                yield f"another cohort: round {number} at {site.name}"
