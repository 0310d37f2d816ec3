"""Inference about every contributor of a study from what its parties have: members, and a site's classes.

The guesser of classes sees one number of a site (its mean distance from the requester over the requester's norm, or its
last weight) and guesses how far its class shares are from the requester's. It learns a line from other seeds'
federations, of which it knows everything, and is judged on those it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector
from client_agent.learning.models import build_model
from harness.adversaries.attacked_study import AttackedStudy, Line, rounded, timed
from harness.adversaries.membership import Told, Watched, by_averages, by_loss, by_reference, told, watched
from harness.datasets.site_data import Federation, SiteData
from harness.engine.history import RunHistory, alpha_series, distance_series
from protocol.messages.control import RuleName, RuleSpec

FORMAT: Final = "moiety-inference/1"
_DIGITS: Final = 5


class InferenceLine(Line):
    """One contributor of one study.

    ``by_loss``, ``by_reference`` and ``by_averages`` are three attacks on membership (``membership.py``); the last is
    None where nothing was summed. ``apart`` is half the absolute difference of the site's class shares from the
    requester's, 0 to 1. ``distance`` is the mean opened distance over the requester's own norm, ``weight`` the site's
    last weight; None where the rule opens or changes none.
    """

    format: str = FORMAT
    study: str
    variant: str
    rule: str
    requester: str
    site: str
    seed: int
    sites: int
    members: int
    others: int
    released: int
    by_loss: Told
    by_reference: Told
    by_averages: Told | None
    apart: float
    distance: float | None
    weight: float | None
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The study's name, variant, requester and seed."""
        return (self.study, self.variant, self.requester, self.seed)


_MANY: Final = 60
"""Records of each kind that are looked at: gradients of single records are what takes long."""


@dataclass(frozen=True)
class WatchedRun:
    """One study to run and look at."""

    attacked: AttackedStudy

    def lines(self) -> Iterator[InferenceLine]:
        """One for every contributor. Raises: ConfigurationError for data or settings that do not fit"""
        with timed():
            federation = self.attacked.federation()
            seen = self._watched(federation, alone=False)
            reference = self._watched(federation, alone=True).history.final_model
        for site in federation.contributors:
            with timed() as seconds:
                line = self._line(federation, site, seen, reference, seconds)
            yield line

    def _watched(self, federation: Federation, *, alone: bool) -> Watched:
        table = self.attacked.table
        if alone:
            table = table.model_copy(update={"rule": RuleSpec(name=RuleName.LOCAL), "privacy": None})
        study = self.attacked.study(federation, table)
        demanded = self.attacked.policy.least_isolation > 0
        return watched(self.attacked, study, federation, works_out_isolation=demanded)

    def _line(
        self, federation: Federation, site: SiteData, seen: Watched, reference: Vector, seconds: Callable[[], float]
    ) -> InferenceLine:
        history, model = seen.history, build_model(seen.study.model, 0)
        inside, outside = _some(site.train), _some(site.test)
        last = history.final_model
        averages = None
        if seen.rounds:
            averages = told(*(by_averages(model, seen.rounds, data) for data in (inside, outside)))
        return InferenceLine(
            study=self.attacked.case.name,
            variant=self.attacked.variant,
            rule=history.rule.value,
            requester=history.requester,
            site=site.name,
            seed=self.attacked.seed,
            sites=len(federation.sites),
            members=len(inside),
            others=len(outside),
            released=history.shared_rounds,
            by_loss=told(*(by_loss(model, last, data) for data in (inside, outside))),
            by_reference=told(*(by_reference(model, last, reference, data) for data in (inside, outside))),
            by_averages=averages,
            apart=rounded(_apart(federation, site), _DIGITS),
            distance=_distance(history, site.name),
            weight=_weight(history, site.name),
            seconds=seconds(),
        )


def _some(data: Examples) -> Examples:
    return Examples(data.X[:_MANY], data.y[:_MANY])


def _apart(federation: Federation, site: SiteData) -> float:
    """Half the absolute difference of two sites' class shares: what would have to move to make them equal."""
    classes = len(federation.class_names)

    def shares(one: SiteData) -> NDArray[np.float64]:
        return np.bincount(one.train.y, minlength=classes) / len(one.train)

    return float(np.abs(shares(site) - shares(federation.requester)).sum() / 2)


def _distance(history: RunHistory, site: str) -> float | None:
    """The mean over rounds, in the requester's own norms, so that falling gradients do not hide it."""
    series = next(one.values for one in distance_series(history) if one.site == site)
    norms = [record.requester_norm for record in history.rounds]
    found = [value / norm for value, norm in zip(series, norms, strict=True) if value is not None and norm > 0]
    return rounded(float(np.mean(found)), _DIGITS) if found else None


def _weight(history: RunHistory, site: str) -> float | None:
    series = next(one.values for one in alpha_series(history) if one.site == site)
    found = [value for value in series if value is not None]
    return rounded(found[-1], _DIGITS) if found else None


# --- classes, guessed from one number ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guessed:
    """``explained``: the part of the variance of what is guessed that the guesses explain (0: no better than the mean,
    1: all; below 0: worse than the mean). ``ranked``: Spearman's correlation over all sites.
    """

    sites: int
    explained: float
    ranked: float


def guessed(lines: Sequence[InferenceLine], number: str) -> Guessed | None:
    """Guess from ``distance`` or ``weight``; every seed from the others. None where there is nothing to see."""
    seen = [line for line in lines if getattr(line, number) is not None]
    seeds = sorted({line.seed for line in seen})
    values = np.array([getattr(line, number) for line in seen])
    if len(seeds) < 2 or np.ptp(values) == 0:
        return None
    truth, of = np.array([line.apart for line in seen]), np.array([line.seed for line in seen])
    guesses = np.concatenate([_line_of(values[of != s], truth[of != s], values[of == s]) for s in seeds])
    true = np.concatenate([truth[of == s] for s in seeds])
    left = float(np.sum((true - guesses) ** 2) / np.sum((true - true.mean()) ** 2))
    return Guessed(len(seen), 1 - left, float(spearmanr(values, truth).statistic))


def _line_of(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares through (x, y), read at ``at``; the mean where all x are one number."""
    if np.ptp(x) == 0:
        return np.full(at.size, y.mean())
    return np.asarray(np.polyval(np.polyfit(x, y, 1), at))
