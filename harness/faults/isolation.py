"""Scripted sites' demands of sums, by the agents' own memory, and a check that every update was as well hidden.

Policies, memory and figures are the product's (docs/protocol.md 13). The observer has all updates, and computes from
them what every released sum gives away; no site has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.site.sum_memory import SumMemory, sum_memory
from protocol.arithmetic.ring import Ring
from protocol.errors import PolicyRefusal
from protocol.messages.control import Announcement
from protocol.policy.exposure import SeenSums, SummedRow, SummedWeight
from protocol.policy.site_policy import SitePolicy

DEMANDED: Final = 0.3
_POLICY: Final = SitePolicy(least_isolation=DEMANDED)
_SLACK: Final = 1e-6
"""Both sides compute in floating point, in another order."""
_LARGEST: Final = 2**11
Update = Callable[[str, int], Ring]


def update_of(smooth: float, dimension: int) -> Update:
    """A site's update in each round, as whole numbers, so that sums are exact: ``smooth`` of it is always the same."""

    def made(site: str, number: int) -> Ring:
        parts = smooth * _drawn(f"{site} always", dimension) + (1.0 - smooth) * _drawn(f"{site} {number}", dimension)
        return np.rint(parts).astype(np.int64).view(np.uint64)

    return made


def _drawn(name: str, dimension: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(-_LARGEST, _LARGEST, dimension).astype(np.float64)


def _real(update: Ring) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return update.view(np.int64).astype(np.float64)


@dataclass(frozen=True)
class Told:
    """A released sum as the requester tells it to whoever was not there."""

    announcement: Announcement
    released: tuple[str, ...]


class Hiding:
    """One site's memory on its disk, which outlives the site."""

    def __init__(self, state: Path, site: str, update: Update, requester: str) -> None:
        self._site, self._update, self._requester = site, update, requester
        self._memory: SumMemory = sum_memory(state / site, site, lambda: bytes(32))

    def agrees(self, announcement: Announcement, told: Mapping[int, Told]) -> bool:
        """Return whether this site contributes; then it remembers the row, else that the others may be summed by it."""
        for number, past in sorted(told.items()):
            if (announcement.study_digest, number) not in self._memory.rounds():
                self._memory.remember(self._row(past.announcement), None, proven=True)
                self.settle(past.announcement.study_digest, number, past.released)
        row, kept = self._row(announcement), _real(self._update(self._site, announcement.round))
        try:
            self._memory.agree(row, kept, _POLICY, 0)
        except PolicyRefusal:
            others = tuple(weight for weight in row.weights if weight.site != self._site)
            self._memory.remember(row.model_copy(update={"weights": others}), kept, proven=True)
            return False
        return True

    def proposes(self, announcement: Announcement) -> bool:
        """Return whether the requester may ask for it, with its own update in place of everybody's."""
        try:
            kept = _real(self._update(self._site, announcement.round))
            self._memory.propose(self._row(announcement), kept, _POLICY, 0)
        except PolicyRefusal:
            return False
        return True

    def settle(self, study_digest: str, number: int, released: tuple[str, ...]) -> None:
        """Both servers showed who was summed."""
        self._memory.settle((study_digest, number), tuple(site for site in released if site != self._requester))

    def drop(self, study_digest: str, number: int) -> None:
        """Both servers say that nothing was."""
        self._memory.drop((study_digest, number))

    def _row(self, announcement: Announcement) -> SummedRow:
        update = self._update(self._site, announcement.round)
        return SummedRow(
            study_digest=announcement.study_digest,
            round=announcement.round,
            dimension=update.size,
            layers=(("w", update.size),),
            weights=tuple(SummedWeight(site=site, weight=1.0) for site in announcement.listed),
            least=announcement.least_contributors,
            requester=self._requester,
            model_version=announcement.model_version,
        )


class Observer:
    """Sees every update. ``released`` is told each sum once, in whatever order."""

    def __init__(self, update: Update, requester: str) -> None:
        self._update, self._requester = update, requester
        self._sums: dict[int, frozenset[str]] = {}

    def released(self, number: int, sites: tuple[str, ...]) -> Iterator[str]:
        """Return the updates that the sums give away by more than whoever is in the newest allows.

        Why: every site of a sum has looked at all updates, its own standing in for everybody's.
        """
        contributors = frozenset(sites) - {self._requester}
        if self._sums.setdefault(number, contributors) != contributors:
            yield f"isolation: round {number} was summed twice, over {sorted(contributors)} the second time"
        rounds, columns = sorted(self._sums), sorted(frozenset().union(*self._sums.values()))
        weights = np.array([[float(site in self._sums[one]) for site in columns] for one in rounds])
        for site in sorted(contributors):
            updates = np.array([_real(self._update(site, one)) for one in rounds])
            figures = SeenSums(weights, updates @ updates.T, np.zeros(len(rounds))).figures()
            if figures.min() < DEMANDED - _SLACK:
                row, column = np.unravel_index(int(figures.argmin()), figures.shape)
                yield (
                    f"isolation: with round {number} the update of {columns[column]} in round {rounds[row]} is known "
                    f"with an error of {figures.min():.3f}, where {site} demands {DEMANDED:g}"
                )
