"""A running pair of servers under attack: rounds that are walked to a phase, attacked there, and finished."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import httpx
import numpy as np

from harness.attack.forgeries import Contribution, honest_contribution
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import Reached, SignedClient, there
from harness.federation.server_apps import ServersInMemory
from protocol.arithmetic.ring import Ring
from protocol.messages import paths
from protocol.messages.control import Announcement, RoundState, RoundView
from protocol.sharing import Side

R = TypeVar("R", bound=Reached)

REQUESTER = "hospital-0"
SITES = (REQUESTER, "hospital-1", "hospital-2", "hospital-3", "hospital-4")
VICTIM, EARLY, OTHER, LAST = SITES[1:]
"""The site under attack has not contributed when a round is collecting; the early one has."""
STRANGER = "hospital-9"
"""In the roster, never listed."""
GRID = 4
SMALL, LARGE = 20, 70_000
"""A share of 70,000 elements is sealed in three chunks."""
_ALL_OF: Final = 'select * from "{}" order by 1'
_KEPT_OUT = ("nonces", "refusals")
"""Tables that a refused request may change: its nonce is spent, and some refusals are kept."""


class Phase(IntEnum):
    """The point of a round at which the attack is made."""

    SETTLED = 0
    COLLECTING = 1
    LOCKED = 2
    MEASURED = 3
    RELEASED = 4


def data_folder(federation: Reached, side: Side) -> Path:
    return federation.folder / federation.roster.operator(side).name / "data"


def database(federation: Reached, side: Side) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{data_folder(federation, side) / 'server.db'}?mode=ro", uri=True)


def stored(federation: Reached, side: Side) -> dict[str, list[Any]]:
    """Everything durable at one server: the rows of every table, cursors included, and the names of its files."""
    with closing(database(federation, side)) as connection:
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        tables = [name for name in names if name not in _KEPT_OUT and not name.startswith("sqlite_")]
        found: dict[str, list[Any]] = {t: list(connection.execute(_ALL_OF.format(t))) for t in tables}
    return {**found, "files": sorted(path.name for path in (data_folder(federation, side) / "shares").iterdir())}


def refusals(federation: Reached) -> list[tuple[str, str, str]]:
    """Side, party and code of every refusal that was kept."""
    kept = []
    for side in Side:
        with closing(database(federation, side)) as connection:
            rows = connection.execute("select at_s, party, code from refusals")
            kept += [(at_s, side.value, *row) for at_s, *row in rows]
    return [(side, party, code) for _, side, party, code in sorted(kept)]


def small_update(rng: np.random.Generator, dimension: int) -> Ring:
    """Entries below 2^11 in size: the norm stays below 2^21 at every dimension used here."""
    return rng.integers(-(2**11), 2**11, dimension).astype(np.int64).view(np.uint64)


class AttackedPair(Generic[R]):
    """Two running servers and one study a model size; every round of a study gets the next number."""

    def __init__(self, federation: R) -> None:
        self.federation = federation
        self._rng = np.random.default_rng(3)
        self._studies: dict[int, ScriptedRequester[R]] = {}
        self._made: list[ScriptedRequester[R]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for sites in self._made:
            sites.close()

    def study(self, dimension: int) -> tuple[ScriptedRequester[R], int]:
        """A study whose last round is over, and the number of its next round."""
        if dimension in self._studies:
            current = self._studies[dimension].view(Side.A).current
            if current is None:
                return self._studies[dimension], 1
            if current.state in (RoundState.RELEASED, RoundState.SKIPPED):
                return self._studies[dimension], current.round + 1
        return self.new_study(dimension), 1

    def new_study(self, dimension: int, **changes: object) -> ScriptedRequester[R]:
        name = f"trial-{len(self._made)}"
        made = ScriptedRequester(
            self.federation, make_study(self.federation, dimension, name=name, rounds=500, **changes)
        )
        made.create()
        self._studies[dimension] = made
        self._made.append(made)
        return made

    def round(
        self, dimension: int = SMALL, updates: Mapping[str, Ring] | None = None, **announced: object
    ) -> OpenRound[R]:
        """The next round, not announced yet."""
        sites, number = self.study(dimension)
        announcement = sites.announcement(number, listed=SITES[1:]).model_copy(update=announced)
        x = {site: small_update(self._rng, dimension) for site in SITES} | dict(updates or {})
        return OpenRound(sites, announcement, x)


def soon(pair: AttackedPair[ServersInMemory]) -> int:
    """A round's end that is worth waiting for: a script takes no time on the servers' clock."""
    return int(pair.federation.clock.now()) + 20


@contextmanager
def pair_in_memory(folder: Path, sites: Sequence[str] = SITES) -> Iterator[AttackedPair[ServersInMemory]]:
    """Two real servers of these sites, whose files are in ``folder``."""
    with ServersInMemory(folder, sites) as servers, AttackedPair(servers) as pair:
        yield pair


@dataclass
class OpenRound(Generic[R]):
    """One round with everybody's updates and honest contributions."""

    sites: ScriptedRequester[R]
    announcement: Announcement
    x: Mapping[str, Ring]
    view: RoundView | None = None
    sent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.honest = {site: self.fresh(site) for site in SITES}

    @property
    def number(self) -> int:
        return self.announcement.round

    @property
    def federation(self) -> R:
        return self.sites.federation

    @property
    def current(self) -> RoundView:
        return there(self.view, "view of a round")

    def client(self, name: str) -> SignedClient:
        return self.sites.clients[name]

    def fresh(self, site: str, x: Ring | None = None, announcement: Announcement | None = None) -> Contribution:
        """A sound contribution of ``site`` with fresh randomness."""
        vector = self.x[site] if x is None else x
        told = announcement or self.announcement
        roster, bits = self.federation.roster, self.sites.study.parameters.ring_bits
        return honest_contribution(vector, told, site, roster, secrets.token_bytes(32), bits=bits)

    # --- walking on ---

    def advance(self, phase: Phase) -> None:
        """Walk from the beginning to ``phase``, everybody honest."""
        if phase >= Phase.COLLECTING:
            self.sites.announce(self.announcement)
            for site in (REQUESTER, EARLY):
                self.contribute(site)
        for at, step in ((Phase.LOCKED, self.lock), (Phase.MEASURED, self.measure), (Phase.RELEASED, self.release)):
            if phase >= at:
                step()

    def contribute(self, site: str, contribution: Contribution | None = None) -> None:
        """Both halves; the honest ones unless others are given."""
        chosen = contribution or self.honest[site]
        for side in Side:
            response = self.put(site, side, chosen[side].sealed())
            assert response.status_code == 200, response.text
        self.sent.add(site)

    def lock(self) -> None:
        for site in SITES:
            if site not in self.sent:
                self.contribute(site)
        self.view = self.sites.wait_transcript(Side.A, self.number)

    def measure(self) -> None:
        self.view = self.sites.measured(self.number, self.x[REQUESTER], dict.fromkeys(self.announcement.listed, GRID))

    def in_range(self) -> dict[str, bool]:
        opened = self.sites.openings(self.current, {})
        return {site: one.in_range for site, one in opened.items()}

    def release(self, sites: Sequence[str] | None = None, to: Sequence[Side] = tuple(Side)) -> None:
        self.sites.release(self.current, sites, to)
        self.wait_released()

    def wait_released(self) -> None:
        self.view = self.sites.released(self.number)[Side.B]

    def finish(self) -> None:
        """Walk from wherever the round is to its released sum, which is exact."""
        state = None if self.view is None else self.view.state
        if not self.sent:
            self.advance(Phase.COLLECTING)
        if state is None:
            self.lock()
        if state in (None, RoundState.LOCKED):
            self.measure()
        if state is not RoundState.RELEASED:
            self.release()
        self.require_sum(self.agreed)

    @property
    def agreed(self) -> tuple[str, ...]:
        return there(self.current.agreed_set, "agreed set").message.sites

    def require_sum(self, sites: Sequence[str]) -> None:
        """Require that a site opens the sum of exactly these sites' updates."""
        total = np.zeros(self.x[REQUESTER].size, dtype=np.uint64)
        for site in sites:
            total += self.x[site]
        assert np.array_equal(self.sites.output(OTHER, self.number), total)

    # --- requests ---

    def path(self, template: str, **values: str | int) -> str:
        filled = {"round": self.number, "attempt": 1} | values
        return paths.fill(template, study=self.sites.study.name, **filled)

    def put(self, site: str, side: Side, body: bytes, **place: int) -> httpx.Response:
        return self.client(site).send(side, "PUT", self.path(paths.CONTRIBUTION, **place), body)

    def everything_stored(self) -> list[object]:
        """Both servers' durable state, and what a site that is not concerned sees."""
        seen = [self.sites.view(side, OTHER) for side in Side]
        return [*seen, *(stored(self.federation, side) for side in Side)]


RoundInMemory: TypeAlias = OpenRound[ServersInMemory]
