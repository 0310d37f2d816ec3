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

from harness.adversaries.attacked_study import OpenedSum
from harness.adversaries.reconstruction import Prior, Reconstruction
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
        """Return the row that sites remember."""
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


@dataclass(frozen=True)
class MemoryAttack:
    """``tries`` asks a federation for sums; the figure is the error for the site that is known best in the end."""

    name: str
    says: str
    tries: Callable[[Federation], None]

    def error(self, limit: float) -> float:
        """The least relative error of any update of any site, by whoever knows how updates move; 1 without a sum."""
        federation = Federation(limit)
        self.tries(federation)
        if not federation.opened:
            return 1.0
        found = [
            error
            for prior in (Prior.OWN, Prior.TRUE)
            for errors in Reconstruction((REQUESTER,), prior).errors(federation.opened).values()
            for error in errors
            if error is not None
        ]
        return min(found)


def start() -> Model:
    """Version 0."""
    return np.zeros(FEATURES)


def stepped(federation: Federation, listed: Sequence[str], model: Model, rate: float) -> Model:
    """The model after a sum over ``listed``; the same one where it was declined."""
    total = federation.ask(listed, model)
    return model if total is None else model - rate * total / (1 + len(listed))


def another_version(federation: Federation) -> None:
    """The same model under a later number: others make two honest rounds, their release is the evidence."""
    federation.ask(FOUR, start())
    moved = stepped(federation, REST, start(), 0.1)
    stepped(federation, REST, moved, 0.1)
    federation.ask(WITHOUT_ONE, start())


def learning_rate(rate: float) -> Callable[[Federation], None]:
    """All sites step the model themselves, and it is nearly the last one."""

    def tries(federation: Federation) -> None:
        federation.ask(WITHOUT_ONE, stepped(federation, FOUR, start(), rate))

    return tries


def late_joiner(federation: Federation) -> None:
    """A site joins: the sums with and without it."""
    federation.ask(WITHOUT_ONE, start())
    federation.ask(FOUR, start())


def away(federation: Federation) -> None:
    """The list stays, its least number lets one be away, and the servers' operator sees to it that one is."""
    federation.ask(FOUR, start(), Claim(least=3))
    federation.ask(FOUR, start(), Claim(least=3), away=("one",))


def second_study(federation: Federation) -> None:
    """Another study over the same data begins with the same model."""
    federation.ask(FOUR, start())
    federation.ask(WITHOUT_ONE, start(), Claim(study="second"))


def cancelled(federation: Federation) -> None:
    """The study is cancelled before its release is seen, and created again."""
    federation.ask(FOUR, start())
    federation.forget_ends()
    federation.ask(WITHOUT_ONE, start(), Claim(study="again"))


def restarted(federation: Federation) -> None:
    """Every agent lost its memory of updates and has the weights back from receipts."""
    federation.ask(FOUR, start())
    federation.lose_updates()
    federation.ask(WITHOUT_ONE, start())


def steered_back(federation: Federation) -> None:
    """The requester's own update takes the model back to where it was."""
    total = federation.ask(FOUR, start())
    honest = start() if total is None else start() - 0.1 * total / 5
    others = np.sum([federation.update(site, honest) for site in REST], axis=0)
    federation.ask(REST, honest, own=(honest - start()) / 0.1 * 4 - others)
    federation.ask(WITHOUT_ONE, start())


def slow_lists(federation: Federation) -> None:
    """Weight Erosion's lists: sixteen rounds, every weight a little lower each time, none like the others."""
    model, random = start(), np.random.default_rng(16)
    weights = dict.fromkeys(FOUR, 1.0)
    for _ in range(16):
        total = federation.ask(FOUR, model, Claim(weights=weights))
        model = model if total is None else model - 0.02 * total / (1 + sum(weights.values()))
        weights = {site: weight - random.integers(1, 40) / 1024 for site, weight in weights.items()}


def two_lists(federation: Federation) -> None:
    """One site's weight is changed by one step of a fine grid: the difference is its update, divided by the step."""
    federation.ask(FOUR, start())
    federation.ask(FOUR, start(), Claim(weights={**dict.fromkeys(FOUR, 1.0), "one": 1023 / 1024}))


def through_others(federation: Federation) -> None:
    """Three sums of which no two differ by one site: {1,2,3,4} less {2,3,4,5} is 1 - 5, and {1,5} is their sum."""
    federation.ask(FOUR, start())
    federation.ask(("two", "three", "four", "five"), start())
    federation.ask(("one", "five"), start())


PARTS: Final = (("one", "two", "three"), ("four", "five", "six"), ("two", "three", "four", "five", "six"))
"""The third less the second less the first is the first site's update, with its sign turned."""


def apart(federation: Federation) -> None:
    """Three studies over the same data; nobody is in the first and the second, or told of the other one."""
    for number, listed in enumerate(PARTS):
        federation.ask(listed, start(), Claim(study=f"study {number}"), told=listed)


def untold(federation: Federation) -> None:
    """The same in one study whose requester tells nobody of the sums that others were in."""
    for number, listed in enumerate(PARTS):
        federation.ask(listed, start(), Claim(version=number), told=listed)


def padded(federation: Federation) -> None:
    """The same, each sum opened twice: the first was too long, was discarded, and leaves a site a count too many."""
    for version, listed in enumerate(PARTS[:2]):
        for _ in range(2):
            federation.ask(listed, start(), Claim(version=version), told=listed)
    federation.ask(PARTS[2], start(), Claim(version=2), told=PARTS[2])


ATTACKS: Final = (
    MemoryAttack("another version", "the same model under a later number, with a genuine release", another_version),
    *(
        MemoryAttack(f"rate {rate:g}", "a site fewer one version later", learning_rate(rate))
        for rate in (1e-6, 1e-3, 0.1, 0.5)
    ),
    MemoryAttack("steered back", "the requester's own update takes the model back", steered_back),
    MemoryAttack("late joiner", "the sums without and with a site that joins", late_joiner),
    MemoryAttack("away", "a site that is away, under a least number that allows it", away),
    MemoryAttack("second study", "another study over the same data", second_study),
    MemoryAttack("cancelled", "cancelled before the end was seen, and created again", cancelled),
    MemoryAttack("restarted", "agents whose memory was restored from receipts", restarted),
    MemoryAttack("one grid step", "the same sites, one weight a step of the grid lower", two_lists),
    MemoryAttack("through others", "three sums, no two of which differ by one site", through_others),
    MemoryAttack("apart", "three studies, of which no site sees all", apart),
    MemoryAttack("untold", "one study, whose sums a site is told of only when it was in them", untold),
    MemoryAttack("padded", "one study, each of whose hidden sums is discarded once and asked for again", padded),
    MemoryAttack("slow lists", "sixteen lists that fall a little every round", slow_lists),
)
