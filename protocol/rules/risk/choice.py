"""The list of least risk among those that every site's policy accepts (docs/protocol.md 9, 10).

With k others sure to be in the sum and s the largest share, a list passes if for its heaviest site, of weight u,
(1 - s) u <= s times the k lightest weights: one linear constraint for every choice of the heaviest and the k lightest,
of which the solver is shown the one that is broken most. Who is not listed has no weight and does not count, so which
sites to leave out is combinatorial: the lightest goes, and the rest is solved again while the constraint binds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.rules.risk.criterion import Places, Risk
from protocol.rules.risk.quadratic import Cut, Reals, minimiser
from protocol.rules.risk.terms import ListTerms

_TOLERANCE: Final = 1e-8


@dataclass(frozen=True, eq=False)
class Choice:
    """Numerators over the grid: the requester's, and one per site, 0 for one that is not listed."""

    own: int
    numerators: NDArray[np.int64] = field(repr=False)

    def weights(self) -> Reals:
        """The contributors' shares of the sum."""
        return np.asarray(self.numerators / (self.own + self.numerators.sum()), dtype=np.float64)


def best_choice(risk: Risk, terms: ListTerms, grid: int) -> Choice:
    """The best list over the grid, the heaviest weight being 1; at least ``terms.least`` sites have one grid step."""
    sites = np.arange(len(risk.a))
    found: list[Choice] = []
    while True:
        weights = np.zeros(len(risk.a))
        weights[sites] = solved(risk.among(sites), terms)
        found.append(rounded(weights, sites, terms, grid))
        if len(sites) <= terms.least or _share_lacks(weights[sites], terms) < -_TOLERANCE:
            return min(found, key=lambda choice: risk.of(choice.weights()))
        lightest = int(np.argmin(weights[sites]))
        sites = np.delete(sites, lightest)


def solved(risk: Risk, terms: ListTerms) -> Reals:
    """The real weights of least risk with all of these sites listed: float64[n], at least 0, together at most 1."""
    n = len(risk.a)
    everybody = Cut(-np.ones(n), -1.0)

    def most_violated(w: Reals) -> Cut | None:
        negative = Cut(np.eye(n)[int(np.argmin(w))])
        cuts = (negative, everybody, _share_cut(w, terms))
        worst = max((cut for cut in cuts if cut is not None), key=lambda cut: cut.lacks(w))
        return worst if worst.lacks(w) > _TOLERANCE else None

    return np.maximum(minimiser(risk.G, risk.a, most_violated), 0)


def rounded(weights: Reals, sites: Places, terms: ListTerms, grid: int) -> Choice:
    """To the grid; the heaviest sites give way until the list passes in whole numbers.

    Of ``sites`` at least ``terms.least`` stay listed, the heaviest first.
    """
    own = max(0.0, 1 - float(weights.sum()))
    scale = grid / max(own, float(weights.max(initial=0)))
    numerators = np.rint(scale * weights).astype(np.int64)
    due = sites[np.argsort(-weights[sites], kind="stable")][: terms.least]
    numerators[due] = np.maximum(numerators[due], 1)
    share = terms.largest_share
    while share < 1:
        listed = np.flatnonzero(numerators)
        heaviest = listed[int(np.argmax(numerators[listed]))]
        others = np.sort(numerators[listed[listed != heaviest]])[: terms.sure(len(listed))]
        most = int(share * int(others.sum()) / (1 - share))
        if numerators[heaviest] <= max(most, 1):
            break
        numerators[heaviest] = max(most, 1)
    return Choice(int(np.rint(scale * own)), numerators)


def _share_cut(w: Reals, terms: ListTerms) -> Cut | None:
    """Return the cut for the heaviest and the lightest others; None where any share is allowed."""
    share = float(terms.largest_share)
    if share >= 1:
        return None
    heaviest = int(np.argmax(w))
    others = np.delete(np.arange(len(w)), heaviest)
    lightest = others[np.argsort(w[others], kind="stable")][: terms.sure(len(w))]
    normal = np.zeros(len(w))
    normal[lightest] = share
    normal[heaviest] = share - 1
    return Cut(normal)


def _share_lacks(w: Reals, terms: ListTerms) -> float:
    """0 where the policies' constraint binds, below where it does not."""
    cut = _share_cut(w, terms)
    return -np.inf if cut is None else cut.lacks(w)
