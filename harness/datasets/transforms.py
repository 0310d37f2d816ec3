"""A federation's examples changed: pooled, kept for validation, thinned, dealt anew by label, or whitened.

Dealt anew: for every class, the sites' shares of its examples are drawn from Dir(alpha, ..., alpha): the smaller alpha,
the fewer sites have most of a class. Draws that leave a site fewer than ten examples are drawn again.

Whitened: by the pooled mean and covariance of all sites' training parts, the same map at every site. Distances between
updates of a linear model are then nearly those of its loss's own curvature. The moments are pooled in the open, which a
simulation can; sites would sum them first.

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
from harness.datasets.site_data import Federation, Rows, SiteData, split_random, stratified_parts
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind

LEAST_EXAMPLES: Final = 10
MOST_DRAWS: Final = 1000


def joined(parts: Sequence[Examples]) -> Examples:
    return Examples(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))


def pooled(federation: Federation) -> Federation:
    """The same federation, but for the requester's training part: all sites' together, as if data could be moved."""
    train = joined([site.train for site in federation.sites])
    requester = replace(federation.requester, train=train, note="all sites' training parts")
    return replace(federation, sites=(requester, *federation.contributors))


def with_validation(site: SiteData, share: float, random: np.random.Generator) -> SiteData:
    """A part of the site's training examples, drawn at random, kept to choose settings on."""
    order = random.permutation(len(site.train))
    kept, apart = np.split(order, [len(order) - round(share * len(order))])
    train, validation = (Examples(site.train.X[np.sort(rows)], site.train.y[np.sort(rows)]) for rows in (kept, apart))
    return replace(site, train=train, validation=validation)


def thinned(federation: Federation, share: float, seed: int) -> Federation:
    """The same sites, validation and test parts, with ``share`` of every training part, classes cut alike.

    What a site keeps follows from its name, so a seed has one choice, whoever is the requester.
    """

    def kept(site: SiteData) -> SiteData:
        y = site.train.y if federation.task is TaskKind.CLASSES else np.zeros(len(site.train), np.int64)
        random = split_random(f"training share {site.name}", seed)
        rows, _ = stratified_parts(y, (share, 1 - share), random)
        return replace(site, train=Examples(site.train.X[rows], site.train.y[rows]))

    return replace(federation, sites=tuple(map(kept, federation.sites)))


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


_RIDGE: Final = 1e-3
"""A part of the mean variance: a feature that hardly varies, or is a sum of others, is not blown up."""


def whitened(federation: Federation) -> Federation:
    """Every part of every site as (x - mean) covariance^(-1/2). Raises: ConfigurationError for images"""
    if len(federation.inputs) != 1:
        raise ConfigurationError(
            f"key 'case.whitened': examples of shape {list(federation.inputs)} are no rows of a table; leave it out"
        )
    pooled = np.concatenate([site.train.X for site in federation.sites]).astype(np.float64)
    mean = pooled.mean(axis=0)
    covariance = np.atleast_2d(np.cov(pooled, rowvar=False, bias=True))
    values, vectors = np.linalg.eigh(covariance)
    scale = 1 / np.sqrt(np.maximum(values, 0) + _RIDGE * values.mean())
    turn = (vectors * scale) @ vectors.T

    def turned(part: Examples) -> Examples:
        return replace(part, X=((part.X.astype(np.float64) - mean) @ turn).astype(np.float32))

    sites = tuple(
        replace(site, train=turned(site.train), validation=turned(site.validation), test=turned(site.test))
        for site in federation.sites
    )
    return replace(federation, sites=sites, feature_names=())
