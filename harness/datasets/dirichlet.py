"""Label skew by Dirichlet draws: all training examples of a federation, dealt to its sites anew.

For every class, the sites' shares of its examples are drawn from Dir(alpha, ..., alpha): the smaller alpha, the fewer
sites have most of a class. Draws that leave a site fewer than ten examples are drawn again.

Source: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni 2019, Bayesian Nonparametric Federated Learning of Neural
        Networks, section 4; the least number from Li, Diao, Chen, He 2022, Federated Learning on Non-IID Data Silos
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from harness.datasets.site_data import Federation, Rows, split_random
from protocol.errors import ConfigurationError
from protocol.wire.messages import TaskKind

LEAST_EXAMPLES: Final = 10
MOST_DRAWS: Final = 1000


def dealt_anew(federation: Federation, alpha: float, seed: int) -> Federation:
    """The same sites and test and validation parts; the training parts are dealt by label.

    The deal follows the sites' names, so a seed has one, whoever is the requester.

    Raises: ConfigurationError for targets that are no classes, or when no draw gives every site ten examples
    """
    if federation.task is not TaskKind.CLASSES:
        raise ConfigurationError(f"{federation.title}: 'dirichlet' deals examples by class, and its targets are none")
    ordered = sorted(federation.sites, key=lambda site: site.name)
    X, y = (np.concatenate([getattr(site.train, part) for site in ordered]) for part in ("X", "y"))
    random = split_random(f"dirichlet {federation.title}", seed)
    dealt = dict(zip((site.name for site in ordered), _dealt(y, len(ordered), alpha, random), strict=True))
    sites = tuple(
        replace(site, train=Examples(X[dealt[site.name]], y[dealt[site.name]]), note=f"Dirichlet {alpha:g}")
        for site in federation.sites
    )
    return replace(federation, sites=sites)


def _dealt(y: NDArray[np.int64], sites: int, alpha: float, random: np.random.Generator) -> Sequence[Rows]:
    """Row numbers, every one at one site. Raises: ConfigurationError"""
    for _ in range(MOST_DRAWS):
        pieces: list[list[Rows]] = [[] for _ in range(sites)]
        for label in np.unique(y):
            rows = random.permutation(np.flatnonzero(y == label))
            shares = random.dirichlet(np.full(sites, alpha))
            ends = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
            for piece, part in zip(pieces, np.split(rows, ends), strict=True):
                piece.append(part)
        dealt = [np.sort(np.concatenate(piece)) for piece in pieces]
        if min(len(rows) for rows in dealt) >= LEAST_EXAMPLES:
            return dealt
    raise ConfigurationError(
        f"[case] dirichlet = {alpha:g}: {MOST_DRAWS} draws left one of {sites} sites fewer than {LEAST_EXAMPLES} "
        f"examples of {len(y)}: take a larger number, or fewer sites"
    )
