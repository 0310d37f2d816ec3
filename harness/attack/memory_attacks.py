"""A malicious requester against the sites' memory of sums: ways to ask for two sums whose difference is one update.

Sites are linear regressions over their own examples with full batches, the smoothest updates there are, and remember
as agents do: every sum that they were in or were told of, under the site's key. A sum is opened when everybody who is
listed agrees (docs/protocol.md 13). Nothing here knows servers or files: what a crash or a cancelled study leaves of a
memory is tested where it is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.attack.attacked_study import OpenedSum
from harness.attack.reconstruction import Prior, reconstruction_errors
from protocol.errors import PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.exposure import KnownSum, SummedRow, SummedWeight, exposure, told_of_all
from protocol.policy.site_policy import SitePolicy

REQUESTER: Final = "requester"
SITES: Final = ("one", "two", "three", "four", "five", "six", "seven")
FOUR: Final = SITES[:4]
WITHOUT_ONE: Final = SITES[1:4]
REST: Final = SITES[4:]
FEATURES: Final = 12
EXAMPLES: Final = 60
Model = NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """A sum as the requester announces it; all weights 1 and all sites needed, unless it says otherwise.

    ``least`` is the announced least number; ``version`` is the study's model's, as the requester says.
    """

    study: str = "first"
    weights: Mapping[str, float] | None = None
    least: int | None = None
    version: int = 0

    def weight(self, site: str) -> float:
        return 1.0 if self.weights is None else self.weights[site]

    def row(self, number: int, listed: Sequence[str]) -> SummedRow:
        return SummedRow(
            study_digest=self.study,
            round=number,
            dimension=FEATURES,
            weights=tuple(SummedWeight(site=site, weight=self.weight(site)) for site in listed),
            least=len(listed) if self.least is None else self.least,
            requester=REQUESTER,
            model_version=self.version,
        )


HONEST: Final = Claim()


@dataclass
class Federation:
    """Seven honest contributors and a requester that does as it likes; ``limit`` is what the sites demand."""

    limit: float
    opened: list[OpenedSum] = field(default_factory=list)
    declined: int = 0
    _memory: dict[str, list[KnownSum]] = field(default_factory=lambda: {site: [] for site in SITES})
    _asked: Counter[str] = field(default_factory=Counter)
    _accounted: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: {site: set() for site in SITES})

    def update(self, site: str, model: Model) -> Model:
        """The gradient of the site's squared loss over all of its examples."""
        random = np.random.default_rng([7, (REQUESTER, *SITES).index(site)])
        X = random.normal(size=(EXAMPLES, FEATURES))
        y = X @ random.normal(size=FEATURES) + 0.1 * random.normal(size=EXAMPLES)
        gradient: Model = X.T @ (X @ model - y) / EXAMPLES
        return gradient

    def ask(
        self,
        listed: Sequence[str],
        model: Model,
        claim: Claim = HONEST,
        *,
        away: Sequence[str] = (),
        own: Model | None = None,
        told: Sequence[str] = SITES,
    ) -> Model | None:
        """The opened sum with the requester's own update in it, None where somebody declined.

        Whoever is ``away`` is left out of the sum; ``told`` hear of it afterwards.
        """
        number = len(self.opened) + self.declined + 1
        self._asked[claim.study] += 1
        row = claim.row(self._asked[claim.study], listed)
        updates = {site: self.update(site, model) for site in listed if site not in away}
        if not all(self._agrees(site, row, update) for site, update in updates.items()):
            self.declined += 1
            self._tell(SITES, row)  # of a skip, which both servers sign, a site hears sooner or later
            return None
        settled = row.model_copy(update={"released": tuple(sorted(updates))})
        self._tell(told, row)
        for site in told:
            self._memory[site].append(KnownSum(settled, updates.get(site)))
        own = self.update(REQUESTER, model) if own is None else own
        total = own + np.sum([claim.weight(site) * update for site, update in updates.items()], axis=0)
        truth = {site: update.astype(np.float32) for site, update in {REQUESTER: own, **updates}.items()}
        in_sum = {REQUESTER: 1.0, **{site: claim.weight(site) for site in updates}}
        self.opened.append(OpenedSum(number, REQUESTER, in_sum, np.asarray(total), truth))
        return np.asarray(total)

    def lose_updates(self) -> None:
        """Keep what receipts restore: the weights of every sum, no update."""
        for memory in self._memory.values():
            memory[:] = [KnownSum(known.row, None) for known in memory]

    def forget_ends(self) -> None:
        """The study was cancelled before anybody saw how its rounds ended."""
        for memory in self._memory.values():
            memory[:] = [KnownSum(known.row.model_copy(update={"released": None}), known.update) for known in memory]

    def _tell(self, sites: Sequence[str], row: SummedRow) -> None:
        for site in sites:
            self._accounted[site].add(row.name)

    def _agrees(self, site: str, row: SummedRow, update: Model) -> bool:
        told = told_of_all(row, {number for study, number in self._accounted[site] if study == row.study_digest})
        found = exposure(self._memory[site], row, update, told=told)
        try:
            check_isolation(found, row, SitePolicy(least_isolation=self.limit))
        except PolicyRefusal:
            return False
        return True


Script = Callable[[Federation], object]
"""Asks a federation for sums."""


def least_error(script: Script, limit: float) -> float:
    """The least relative error of any update of any site, by whoever knows how updates move; 1 without a sum."""
    federation = Federation(limit)
    script(federation)
    if not federation.opened:
        return 1.0
    return min(
        error
        for prior in (Prior.OWN, Prior.TRUE)
        for errors in reconstruction_errors(federation.opened, (REQUESTER,), prior).values()
        for error in errors
        if error is not None
    )


def start() -> Model:
    return np.zeros(FEATURES)


def _ask(
    listed: Sequence[str] = FOUR, claim: Claim = HONEST, away: Sequence[str] = (), told: Sequence[str] = SITES
) -> Script:
    """One sum at the first model; see :meth:`Federation.ask`."""
    return lambda federation: federation.ask(listed, start(), claim, away=away, told=told)


def _in_turn(*steps: Script) -> Script:
    def script(federation: Federation) -> None:
        for step in steps:
            step(federation)

    return script


def _stepped(federation: Federation, listed: Sequence[str], model: Model, rate: float) -> Model:
    """The model after a sum over ``listed``; the same one where it was declined."""
    total = federation.ask(listed, model)
    return model if total is None else model - rate * total / (1 + len(listed))


def _others_step(federation: Federation) -> None:
    """Two honest rounds, whose release is the evidence for a later version of the model."""
    _stepped(federation, REST, _stepped(federation, REST, start(), 0.1), 0.1)


def _one_step_later(rate: float) -> Script:
    """All sites step the model themselves, and it is nearly the last one."""

    def script(federation: Federation) -> None:
        federation.ask(WITHOUT_ONE, _stepped(federation, FOUR, start(), rate))

    return script


def _steered_back(federation: Federation) -> None:
    total = federation.ask(FOUR, start())
    honest = start() if total is None else start() - 0.1 * total / 5
    others = np.sum([federation.update(site, honest) for site in REST], axis=0)
    federation.ask(REST, honest, own=(honest - start()) / 0.1 * 4 - others)
    federation.ask(WITHOUT_ONE, start())


def _slow_lists(federation: Federation) -> None:
    """Weight Erosion's lists: every weight a little lower each time, none like the others."""
    model, random = start(), np.random.default_rng(16)
    weights = dict.fromkeys(FOUR, 1.0)
    for _ in range(16):
        total = federation.ask(FOUR, model, Claim(weights=weights))
        model = model if total is None else model - 0.02 * total / (1 + sum(weights.values()))
        weights = {site: weight - random.integers(1, 40) / 1024 for site, weight in weights.items()}


PARTS: Final = (("one", "two", "three"), ("four", "five", "six"), ("two", "three", "four", "five", "six"))
"""The third less the second less the first is the first site's update, with its sign turned."""

ATTACKS: Final[Mapping[str, Script]] = {
    "another-version": _in_turn(_ask(), _others_step, _ask(WITHOUT_ONE)),
    "rate-1e-06": _one_step_later(1e-6),
    "rate-0-001": _one_step_later(1e-3),
    "rate-0-1": _one_step_later(0.1),
    "steered-back": _steered_back,
    "late-joiner": _in_turn(_ask(WITHOUT_ONE), _ask()),
    # The list stays, and the servers' operator sees to it that one is away.
    "away": _in_turn(_ask(claim=Claim(least=3)), _ask(claim=Claim(least=3), away=("one",))),
    "second-study": _in_turn(_ask(), _ask(WITHOUT_ONE, Claim("second"))),
    "cancelled": _in_turn(_ask(), Federation.forget_ends, _ask(WITHOUT_ONE, Claim("again"))),
    "restarted": _in_turn(_ask(), Federation.lose_updates, _ask(WITHOUT_ONE)),
    # The difference is one site's update, divided by the step.
    "one-grid-step": _in_turn(_ask(), _ask(claim=Claim(weights={**dict.fromkeys(FOUR, 1.0), "one": 1023 / 1024}))),
    # {1,2,3,4} less {2,3,4,5} is 1 - 5, and {1,5} is their sum.
    "through-others": _in_turn(_ask(), _ask(("two", "three", "four", "five")), _ask(("one", "five"))),
    # Nobody is in the first and the second, or told of the other one.
    "apart": _in_turn(*(_ask(part, Claim(f"study {place}"), told=part) for place, part in enumerate(PARTS))),
    "untold": _in_turn(*(_ask(part, Claim(version=place), told=part) for place, part in enumerate(PARTS))),
    # Each of the first two is opened twice: the first time it was too long, was discarded, and leaves a count too many.
    "padded": _in_turn(
        *(_ask(PARTS[place], Claim(version=place), told=PARTS[place]) for place in (0, 0, 1, 1, 2)),
    ),
    "slow-lists": _slow_lists,
}
