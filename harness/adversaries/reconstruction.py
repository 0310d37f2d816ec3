"""A participant estimates the others' updates from a study's sums and lists (docs/protocol.md 9, isolation).

Every released round gives s_r = sum_i w_ri u_ri, one linear equation per coordinate, with the list's weights in it. One
round says little. Over many rounds the lists differ and the updates move slowly, so that the equations add up to a
system with a solution. The best linear estimate under a prior with covariances C_i between site i's updates of two
rounds, sites independent of each other, is

    u_i = (diag(w_i) C_i)' M^-1 s         M = sum_i (w_i w_i') o C_i + noise          (Gaussian process regression)

and all depends on what the attacker takes for C_i; :class:`Prior` says what it may know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.adversaries.attacked_study import (
    AttackedStudy,
    DeviatingSum,
    Line,
    OpenedSum,
    Reals,
    Recorder,
    program_versions,
    rounded,
    timed,
)
from harness.engine.history import isolation_series
from harness.engine.updates import PlainSum, RoundInputs, Summing
from harness.simulate.run_line import Values
from protocol.errors import Clause

SUMS_OFF_BY: Final = 1e-6
"""Relative error of an opened sum that the attacker counts with: float32, and the rounding of fixed point."""
FRESHNESS: Final = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0)
COMMON: Final = (0.0, 0.3, 0.6, 0.9, 0.97)


class Prior(StrEnum):
    """The attacker's belief about the others' updates.

    ``average``: nothing; every site's update is the opened average of those it does not know. This needs no attack.
    ``own``: everybody's updates move over the rounds as its own do, and point elsewhere.
    ``fitted``: likewise, but some part of every update is drawn afresh each round and some part is common to all; how
    much of each is what makes the opened sums likeliest.
    ``true``: how each site's own updates move, to the last digit: whoever knows a site's batches, and more.
    """

    AVERAGE = "average"
    OWN = "own"
    FITTED = "fitted"
    TRUE = "true"


@dataclass(frozen=True, eq=False)
class Equations:
    """The attacker's equations: a sum per round less its own part, and the weights of all others.

    Shapes: ``sums`` float64[K, D]; ``weights`` float64[K, N], 0 where a site was not in the sum; ``own_gram``
    float64[K, K], the mean of the attackers' Gram matrices over rounds; ``noise`` as in :class:`Reconstruction`.
    """

    sites: tuple[str, ...]
    sums: Reals = field(repr=False)
    weights: Reals
    own_gram: Reals
    noise: float = 0.0

    def noisy(self, matrix: Reals) -> Reals:
        """The covariance of the sums, with their noise and what they are off by."""
        added = self.noise * np.diag(np.sum(self.weights**2, axis=1))
        off = SUMS_OFF_BY**2 * np.trace(matrix) / len(matrix) * np.eye(len(matrix))
        noisy: Reals = matrix + added + off
        return noisy


@dataclass(frozen=True)
class Reconstruction:
    """An attack on a finished study by ``party``, the sites that put together what they have.

    It tries to learn every other site's update of every round. Its figure is the relative error
    ||estimate - update|| / ||update||, by site and round; below 1 it knows something, and what ``average`` reaches
    needs no attack. ``noise`` is the expected squared length of the noise that sites add to what they share: the party
    knows it.
    """

    party: tuple[str, ...]
    prior: Prior
    noise: float = 0.0

    def errors(self, sums: Sequence[OpenedSum]) -> dict[str, tuple[float | None, ...]]:
        """Return one error a released round for each site; None where it was not in the sum, or shared only zeros."""
        equations = equations_of(sums, self.party, self.noise)
        estimates = self._estimates(equations, sums)
        return {
            site: tuple(_error(estimates[place, k], one.updates.get(site)) for k, one in enumerate(sums))
            for place, site in enumerate(equations.sites)
        }

    def _estimates(self, equations: Equations, sums: Sequence[OpenedSum]) -> Reals:
        if self.prior is Prior.AVERAGE:
            return average_estimate(equations)
        if self.prior is Prior.FITTED:
            return fitted_estimate(equations)
        if self.prior is Prior.OWN:
            return linear_estimate(equations, [equations.own_gram] * len(equations.sites))
        return linear_estimate(equations, [gram(sums, site) for site in equations.sites])


def equations_of(sums: Sequence[OpenedSum], party: Sequence[str], noise: float = 0.0) -> Equations:
    """Take what the party knows itself out of every sum. A round that a colluder is not in stays as it is."""
    sites = tuple(dict.fromkeys(site for one in sums for site in one.weights if site not in party))
    known = [[one.weights[own] * one.updates[own] for own in party if own in one.weights] for one in sums]
    totals = np.stack([one.total - sum(parts) for one, parts in zip(sums, known, strict=True)])
    weights = np.array([[one.weights.get(site, 0.0) for site in sites] for one in sums])
    return Equations(sites, totals, weights, np.mean([gram(sums, own) for own in party], axis=0), noise)


def gram(sums: Sequence[OpenedSum], site: str) -> Reals:
    """<u_r, u_r'> of one site's updates, float64[K, K]; zeros for rounds without it."""
    nothing = np.zeros(len(sums[0].total), np.float32)
    rows = np.stack([one.updates.get(site, nothing) for one in sums]).astype(np.float64)
    found: Reals = rows @ rows.T
    return found


def average_estimate(equations: Equations) -> Reals:
    """Everybody sent the same, float64[N, K, D]."""
    of_weights = np.maximum(equations.weights.sum(axis=1), np.finfo(np.float64).tiny)
    return np.broadcast_to(equations.sums / of_weights[:, None], (len(equations.sites), *equations.sums.shape))


def linear_estimate(equations: Equations, covariances: Sequence[Reals]) -> Reals:
    """The best linear estimate for one covariance per site, float64[N, K, D]."""
    weights = equations.weights
    moved = sum(np.outer(w, w) * c for w, c in zip(weights.T, covariances, strict=True))
    solved = np.linalg.solve(equations.noisy(np.asarray(moved)), equations.sums)
    return np.stack([(c * w) @ solved for w, c in zip(weights.T, covariances, strict=True)])


def fitted_estimate(equations: Equations) -> Reals:
    """The own Gram matrix, made fresher and more common to all sites as the sums' likelihood says; float64[N, K, D]."""
    weights, (rounds, dimension) = equations.weights, equations.sums.shape
    observed = equations.sums @ equations.sums.T / dimension
    together, apart = np.outer(weights.sum(axis=1), weights.sum(axis=1)), weights @ weights.T
    best, chosen = -np.inf, (equations.own_gram, 0.0)
    for fresh in FRESHNESS:
        covariance = (1 - fresh) * equations.own_gram + fresh * np.diag(np.diag(equations.own_gram))
        for common in COMMON:
            matrix = equations.noisy(covariance * ((1 - common) * apart + common * together))
            misfit = float(np.trace(np.linalg.solve(matrix, observed))) / rounds  # the likeliest scale
            likelihood = -rounds * np.log(max(misfit, np.finfo(np.float64).tiny)) - np.linalg.slogdet(matrix)[1]
            if likelihood > best:
                best, chosen = float(likelihood), (covariance, common)
    covariance, common = chosen
    solved = np.linalg.solve(equations.noisy(covariance * ((1 - common) * apart + common * together)), equations.sums)
    mixed = (1 - common) * weights + common * weights.sum(axis=1, keepdims=True)
    return np.stack([(covariance * column) @ solved for column in mixed.T])


def _error(estimate: Reals, truth: NDArray[np.float32] | None) -> float | None:
    length = 0.0 if truth is None else float(np.linalg.norm(truth))
    if truth is None or length == 0:
        return None
    return float(np.linalg.norm(estimate - truth)) / length


# --- a study, attacked by everybody in it ---------------------------------------------------------------------------

FORMAT: Final = "moiety-attack/2"
_DIGITS: Final = 4


class PartyErrors(Line):
    """One party's errors with one prior: by site, the relative error of every released round."""

    party: tuple[str, ...]
    prior: Prior
    errors: dict[str, Values]

    def median(self, site: str) -> float | None:
        """The error of a middling round, None for a site that was in no sum."""
        found = sorted(error for error in self.errors.get(site, ()) if error is not None)
        return found[len(found) // 2] if found else None

    def least(self, site: str) -> float | None:
        """The error of the round that is known best."""
        return min((error for error in self.errors.get(site, ()) if error is not None), default=None)


class AttackLine(Line):
    """One study, run once and attacked by everybody in it; lists have one entry a released round, ``isolation`` one
    for every round of the study.

    ``setting`` names what was changed about the study, ``rounds`` are the numbers of the released rounds, ``weight``
    the weights in the sums, ``lists`` how many different ones there were. ``isolation`` is what each site worked out
    before it contributed, the requester's own among them. ``ended_by`` is the
    policy's clause that ended the shared part, None where none did.
    """

    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    rule: str
    end: str
    reason: str
    ended_by: Clause | None
    parameters: int
    test_accuracy: float
    rounds: tuple[int, ...]
    lists: int
    weight: dict[str, Values]
    isolation: dict[str, Values]
    attacks: tuple[PartyErrors, ...]
    seconds: float
    versions: dict[str, str]

    def by(self, party: tuple[str, ...], prior: Prior) -> PartyErrors | None:
        """One party's result, None where it was not tried."""
        return next((one for one in self.attacks if (one.party, one.prior) == (party, prior)), None)

    @property
    def least_isolation(self) -> float | None:
        """The smallest figure that any site found in a round whose sum was opened."""
        opened = {number - 1 for number in self.rounds}
        found = [
            value
            for values in self.isolation.values()
            for place, value in enumerate(values)
            if value is not None and place in opened
        ]
        return min(found, default=None)

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The study's name, variant, setting, requester and seed."""
        return (self.study, self.variant, self.setting, self.requester, self.seed)


@dataclass(frozen=True)
class AttackedRun:
    """One study to run and attack."""

    attacked: AttackedStudy

    def line(self) -> AttackLine:
        """Run and attack. Raises: ConfigurationError for data or settings that do not fit"""
        with timed() as seconds:
            of = self.attacked
            federation = of.federation()
            study = of.study(federation)
            recorder = Recorder(Noisy(PlainSum(), of.setting.noise, of.seed) if of.setting.noise else PlainSum())
            history = of.run(study, federation, recorder)
            sums = recorder.sums
            return AttackLine(
                study=of.case.name,
                variant=of.variant,
                setting=of.setting.name,
                requester=history.requester,
                seed=of.seed,
                rule=history.rule.value,
                end=history.end.value,
                reason=history.reason,
                ended_by=history.ended_by,
                parameters=study.parameters.dimension,
                test_accuracy=history.test_accuracy,
                rounds=tuple(one.round for one in sums),
                lists=len({tuple(sorted(one.weights.items())) for one in sums}),
                weight={site: _values([one.weights.get(site) for one in sums]) for site in history.contributors},
                isolation={one.site: _values(one.values) for one in isolation_series(history)},
                attacks=attacks_on(sums, (of.setting.noise * study.parameters.clip_norm) ** 2),
                seconds=seconds(),
                versions=program_versions(),
            )


class Noisy(DeviatingSum):
    """Every contributor adds Gaussian noise to its update before it shares it; recorded updates are those without."""

    def __init__(self, inner: Summing, length: float, seed: int) -> None:
        super().__init__(inner)
        self._length = length
        self._random = np.random.default_rng(seed)

    def sent(self, inputs: RoundInputs) -> dict[str, Reals]:
        deviation = self._length * inputs.clip_norm / np.sqrt(inputs.own.values.size)
        return {
            site: update.values + self._random.normal(0, deviation, update.values.size)
            for site, update in inputs.updates.items()
        }


def attacks_on(sums: Sequence[OpenedSum], noise: float = 0.0) -> tuple[PartyErrors, ...]:
    """The requester, every contributor, and the requester with each contributor, with every prior.

    ``noise`` is the expected squared length of what every site adds to its update.
    """
    if not sums:
        return ()
    requester = sums[0].requester
    others = tuple(dict.fromkeys(site for one in sums for site in one.weights if site != requester))
    parties = [(requester,), *((site,) for site in others), *((requester, site) for site in others)]
    return tuple(
        PartyErrors(party=party, prior=prior, errors=_errors(sums, Reconstruction(party, prior, noise)))
        for party in parties
        for prior in Prior
        if len(party) == 1 or prior is not Prior.AVERAGE
    )


def _errors(sums: Sequence[OpenedSum], attack: Reconstruction) -> dict[str, Values]:
    return {site: _values(errors) for site, errors in attack.errors(sums).items()}


def _values(values: Sequence[float | None]) -> Values:
    return tuple(None if value is None else rounded(value, _DIGITS) for value in values)
