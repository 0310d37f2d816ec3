"""Weight lists by which one sum nearly is one site's update: against the policy that every listed agent checks.

Seven real agents with their folders and the default policy; the requester, and whoever helps it, is scripted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import GRID, SITES, START, Federation, study

_CLAUSES = "protocol.policy.clauses.check_"
_ISOLATION: Mapping[str, object] = {"client_agent.site.remembered_sums.check_isolation": passes}
_READ = 0.15
_ASSUMED = "assumed_colluders, where the site's policy or the study sets it; 0 by default"
_VICTIM = SITES[0]


def _without(*clauses: str) -> Mapping[str, object]:
    """These clauses of the policy pass everything, and isolation, which would refuse most such lists too."""
    return {**_ISOLATION, **{_CLAUSES + clause: passes for clause in clauses}}


class OneSum(Attack):
    """One announced list; the figure is the error of the victim's update, from the sum and what accomplices know."""

    figure = "relative error of the victim's update, from one sum"

    def __init__(self, name: str, party: Party, tries: str, defence: str, *clauses: str) -> None:
        self.name, self.party, self.tries, self.defence = name, party, tries, defence
        self.without = _without(*clauses)
        self._listed: tuple[str, ...] = SITES[:4]
        self._numerators: dict[str, int] = {}
        self._accomplices: tuple[str, ...] = ()
        self._least = 3
        self.promised = defence is not _ASSUMED

    def over(
        self,
        *listed: str,
        accomplices: tuple[str, ...] = (),
        least: int = 3,
        numerators: Mapping[str, int] | None = None,
    ) -> OneSum:
        """The list: who is on it, whose updates the requester is told, and weights other than 1 (over the grid)."""
        self._listed, self._accomplices, self._least = listed, accomplices, least
        self._numerators = dict(numerators or {})
        return self

    def attempt(self, folder: Path) -> Found:
        of = study()
        with Federation(folder) as sites:
            made = sites.round(of, 1, self._listed, version=0, least=self._least, numerators=self._numerators)
            truth = {site: sites.learners[site].gradient(START).astype(np.float64) for site in self._listed}
        if made.refused:
            return Found(False, 1.0)
        weight = {site: self._numerators.get(site, GRID) / GRID for site in self._listed}
        known = np.sum([weight[site] * truth[site] for site in self._accomplices], axis=0) if self._accomplices else 0.0
        found = (made.sum - known) / weight[_VICTIM]
        error = float(np.linalg.norm(found - truth[_VICTIM]) / np.linalg.norm(truth[_VICTIM]))
        return Found(error < _READ, error)


def hostile_lists() -> tuple[Attack, ...]:
    """Every attack of this family."""
    asks, one, two, three, four = Party.REQUESTER, *SITES[:4]
    return (
        OneSum(
            "list-of-one-heavy-site",
            asks,
            "gives everybody else the least weight there is",
            "the largest share of a sum that a site may have",
            "largest_share",
        ).over(one, two, three, four, numerators={two: 1, three: 1, four: 1}),
        OneSum(
            "list-of-two-with-an-accomplice",
            Party.SITES,
            "lists one site and one of its own",
            "the least number of contributors that a site asks for",
            "enough_contributors",
            "least_number",
            "largest_share",
        ).over(one, two, accomplices=(two,), least=2),
        OneSum(
            "list-of-one",
            asks,
            "asks for the sum of one site",
            "the least number of contributors that a site asks for",
            "enough_contributors",
            "least_number",
            "largest_share",
        ).over(one, least=1),
        OneSum(
            "list-of-accomplices",
            Party.SITES,
            "lists one site and, for the rest, sites of its own, whose updates it is told",
            _ASSUMED,
        ).over(one, two, three, four, accomplices=(two, three, four), least=4),
    )
