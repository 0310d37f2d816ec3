"""A participant estimates the others' updates from a study's sums and lists (docs/protocol.md 9, isolation).

Every released round gives s_r = sum_i w_ri u_ri, one linear equation per coordinate, with the list's weights in it. One
round says little. Over many rounds the lists differ and the updates move slowly, so that the equations add up to a
system with a solution. The best linear estimate under a prior with covariances C_i between site i's updates of two
rounds, sites independent of each other, is

    u_i = (diag(w_i) C_i)' M^-1 s         M = sum_i (w_i w_i') o C_i + noise          (Gaussian process regression)

and all depends on what the attacker takes for C_i; :class:`Prior` says what it may know.

The study is run twice over the same draws: once with everybody, to see which rounds sum (a rule may measure in rounds
of its own) and who has most weight in the first; then with that site away at the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.attack.attacked_study import (
    AttackedStudy,
    Line,
    OpenedSum,
    Reals,
    Recorder,
    line_of,
    relative_error,
    rounded,
    timed,
)
from harness.datasets.site_data import Federation
from harness.engine.history import RunHistory, isolation_series
from harness.engine.run_state import EVERYBODY, Attendance
from harness.simulate.run_line import Values
from protocol.errors import Clause, ConfigurationError
from protocol.messages.control import Study

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
    float64[K, K], the mean of the attackers' Gram matrices over rounds.
    """

    sites: tuple[str, ...]
    sums: Reals = field(repr=False)
    weights: Reals
    own_gram: Reals


def reconstruction_errors(
    sums: Sequence[OpenedSum], party: Sequence[str], prior: Prior
) -> dict[str, tuple[float | None, ...]]:
    """Attack a finished study by ``party``, the sites that put together what they have, against every other site.

    -> ||estimate - update|| / ||update|| of every released round for each site; None where it was not in the sum, or
    shared only zeros. Below 1 the party knows something, and what ``average`` reaches needs no attack.
    """
    equations = equations_of(sums, party)
    estimates = _estimates(equations, sums, prior)
    return {
        site: tuple(_error(estimates[place, k], one.updates.get(site)) for k, one in enumerate(sums))
        for place, site in enumerate(equations.sites)
    }


def _estimates(equations: Equations, sums: Sequence[OpenedSum], prior: Prior) -> Reals:
    if prior is Prior.AVERAGE:
        return average_estimate(equations)
    if prior is Prior.FITTED:
        return fitted_estimate(equations)
    if prior is Prior.OWN:
        return linear_estimate(equations, [equations.own_gram] * len(equations.sites))
    return linear_estimate(equations, [gram(sums, site) for site in equations.sites])


def _noisy(matrix: Reals) -> Reals:
    """The covariance of the sums, with what they are off by."""
    noisy: Reals = matrix + SUMS_OFF_BY**2 * np.trace(matrix) / len(matrix) * np.eye(len(matrix))
    return noisy


def equations_of(sums: Sequence[OpenedSum], party: Sequence[str]) -> Equations:
    """Take what the party knows itself out of every sum. A round that a colluder is not in stays as it is."""
    sites = tuple(dict.fromkeys(site for one in sums for site in one.weights if site not in party))
    known = [[one.weights[own] * one.updates[own] for own in party if own in one.weights] for one in sums]
    totals = np.stack([one.total - sum(parts) for one, parts in zip(sums, known, strict=True)])
    weights = np.array([[one.weights.get(site, 0.0) for site in sites] for one in sums])
    return Equations(sites, totals, weights, np.mean([gram(sums, own) for own in party], axis=0))


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
    solved = np.linalg.solve(_noisy(np.asarray(moved)), equations.sums)
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
            matrix = _noisy(covariance * ((1 - common) * apart + common * together))
            misfit = float(np.trace(np.linalg.solve(matrix, observed))) / rounds  # the likeliest scale
            likelihood = -rounds * np.log(max(misfit, np.finfo(np.float64).tiny)) - np.linalg.slogdet(matrix)[1]
            if likelihood > best:
                best, chosen = float(likelihood), (covariance, common)
    covariance, common = chosen
    solved = np.linalg.solve(_noisy(covariance * ((1 - common) * apart + common * together)), equations.sums)
    mixed = (1 - common) * weights + common * weights.sum(axis=1, keepdims=True)
    return np.stack([(covariance * column) @ solved for column in mixed.T])


def _error(estimate: Reals, truth: NDArray[np.float32] | None) -> float | None:
    if truth is None or not truth.any():
        return None
    return relative_error(estimate, truth)


# --- a study, attacked by everybody in it ---------------------------------------------------------------------------

FORMAT: Final = "moiety-attack/2"
_DIGITS: Final = 4


class PartyErrors(Line):
    """One party's errors with one prior: by site, the relative error of every released round."""

    party: tuple[str, ...]
    prior: Prior
    errors: dict[str, Values]


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
        return next((one for one in self.attacks if (one.party, one.prior) == (party, prior)), None)


def attacked_line(of: AttackedStudy) -> AttackLine:
    """Run and attack. Raises: ConfigurationError for data or settings that do not fit"""
    with timed() as seconds:
        federation = of.federation()
        study = of.study(federation)
        recorder = Recorder()
        history = of.run(study, federation, recorder)
        sums = recorder.sums
        return line_of(
            AttackLine,
            of,
            history,
            reason=history.reason,
            ended_by=history.ended_by,
            parameters=study.parameters.dimension,
            test_accuracy=history.test_accuracy,
            rounds=tuple(one.round for one in sums),
            lists=len({tuple(sorted(one.weights.items())) for one in sums}),
            weight={site: _values([one.weights.get(site) for one in sums]) for site in history.contributors},
            isolation={site: _values(values) for site, values in isolation_series(history).items()},
            attacks=attacks_on(sums),
            seconds=seconds(),
        )


def attacks_on(sums: Sequence[OpenedSum]) -> tuple[PartyErrors, ...]:
    """The requester, every contributor, and the requester with each contributor, with every prior."""
    if not sums:
        return ()
    requester = sums[0].requester
    others = tuple(dict.fromkeys(site for one in sums for site in one.weights if site != requester))
    parties = [(requester,), *((site,) for site in others), *((requester, site) for site in others)]
    return tuple(
        PartyErrors(
            party=party,
            prior=prior,
            errors={site: _values(errors) for site, errors in reconstruction_errors(sums, party, prior).items()},
        )
        for party in parties
        for prior in Prior
        if len(party) == 1 or prior is not Prior.AVERAGE
    )


def _values(values: Sequence[float | None]) -> Values:
    return tuple(None if value is None else rounded(value, _DIGITS) for value in values)


DIFFERENCING_FORMAT: Final = "moiety-differencing/1"
_DIFFERENCING_DIGITS: Final = 5


class DifferencedLine(Line):
    """``site`` was in the first sum and away at the second; errors are of its update in the first, relative to its
    length: ``difference`` of the two sums, the requester's part taken out, over the site's weight; the others by what
    the attacker takes the sites' updates to do (:class:`Prior`).

    ``predicted`` is the least isolation that anybody worked out before the second sum, about whomever's update.
    """

    format: str = DIFFERENCING_FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    site: str
    seed: int
    rule: str
    sites: int
    parameters: int
    weight: float
    predicted: float
    difference: float
    average: float
    own: float
    fitted: float
    true: float
    seconds: float

    @property
    def achieved(self) -> float:
        """The least error of all estimates that the requester can make."""
        return min(self.difference, self.average, self.own, self.fitted)


def differenced_line(of: AttackedStudy) -> DifferencedLine:
    """Run one study, of two sums; the site with the largest weight is away at the second, of equal ones by seed.

    Raises: ConfigurationError for data or settings that do not fit, and where there were no two sums
    """
    with timed() as seconds:
        federation = of.federation()
        study = of.study(federation).model_copy(update={"rounds": 2})
        whole = _two_sums(of, study, federation, EVERYBODY)[1]
        turned = of.contributors_in_turn(federation)
        site = max(turned, key=lambda name: whole[0].weights.get(name, 0.0))
        away = Attendance(missed=frozenset({(whole[1].round, site)}))
        history, sums = _two_sums(of, study, federation, away)
        requester = federation.requester.name
        errors = {prior: reconstruction_errors(sums, (requester,), prior)[site][0] for prior in Prior}
        return line_of(
            DifferencedLine,
            of,
            history,
            site=site,
            parameters=study.parameters.dimension,
            weight=_rounded(sums[0].weights[site]),
            predicted=_rounded(_predicted(history, sums[1].round)),
            difference=_rounded(difference_error(sums, site)),
            **{prior.value: _rounded(error) for prior, error in errors.items()},
            seconds=seconds(),
        )


def _two_sums(
    of: AttackedStudy, study: Study, federation: Federation, attendance: Attendance
) -> tuple[RunHistory, list[OpenedSum]]:
    recorder = Recorder()
    history = of.run(study, federation, recorder, attendance=attendance)
    if len(recorder.sums) < 2:
        raise ConfigurationError(f"{of.case.name}, {of.variant}: {len(recorder.sums)} sums were opened, two are needed")
    return history, recorder.sums


def difference_error(sums: list[OpenedSum], site: str) -> float:
    """||(s_1 - s_2) / w - g|| / ||g|| for the site's update g in the first sum; s without the requester's own part.

    Requires: two sums, the first with the site
    """
    left = [one.total - one.weights[one.requester] * one.updates[one.requester] for one in sums]
    truth = sums[0].updates[site].astype(np.float64)
    guess = (left[0] - left[1]) / sums[0].weights[site]
    return relative_error(guess, truth)


def _predicted(history: RunHistory, number: int) -> float:
    record = next(one for one in history.rounds if one.round == number)
    return min(one.value for one in record.isolation)


def _rounded(value: float | None) -> float:
    return float("nan") if value is None else rounded(value, _DIFFERENCING_DIGITS)
