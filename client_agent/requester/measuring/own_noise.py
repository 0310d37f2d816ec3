"""The requester's estimates about its own update for a rule that weighs by risk (docs/protocol.md 10).

How noisy the update is, and how far from everybody's mean: neither leaves this site. Both are journalled before the
model steps, from which they could not be told afterwards.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_agent.requester.study import RequesterStudy
from protocol.arithmetic.fixed_point import decode
from protocol.errors import ProtocolViolation
from protocol.messages.control import Purpose
from protocol.rounds.evidence import PastRelease
from protocol.rules.interface import RiskRule, Rule
from protocol.rules.shrinkage import distance_from_mean

_NOISE: Final = "own_noise.json"
_FROM_MEAN: Final = "from_mean.json"


class OwnNoise(BaseModel):
    """tr Cov of the clipped update, and its standard error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    variance: float
    error: float


class FromMean(BaseModel):
    """The distance of the update from the plain mean of everybody's."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    distance: float


def learns_from(rule: Rule, purpose: Purpose) -> bool:
    """Return whether a rule that weighs by risk learns from such a round: from measurements, or from every sum of
    updates.
    """
    return isinstance(rule, RiskRule) and purpose is (Purpose.MEASURE if rule.measures else Purpose.UPDATE)


def own_noise(owner: RequesterStudy, round_number: int) -> OwnNoise:
    """Return the noise of the round's update; estimated the first time.

    Requires: the model is still the round's
    Raises:   UnusableUpdate, where the estimate has too few examples, or none that stand by themselves
    """
    path = owner.journal.round_folder(round_number) / _NOISE
    known = owner.journal.read(path, OwnNoise)
    if known is not None:
        return known
    with owner.stopwatch.phase("own noise"):
        found = owner.learner.update_noise(owner.require_model(), round_number)
    noise = OwnNoise(variance=found.variance, error=found.error)
    owner.journal.write(path, noise)
    return noise


def keep_from_mean(owner: RequesterStudy, past: PastRelease, average: NDArray[np.float32]) -> None:
    """Compute it from the opened average, this site's own part in it, and the weights of the sites in the sum.

    Shapes:   average float32[D]
    """
    weight_list, own = past.weight_list, owner.context.site
    others = [weight_list.numerator_of(site) or 0 for site in past.release_set.message.sites if site != own]
    encoded = owner.encoded_file(past.announcement)
    part = decode(encoded(0, encoded.length), owner.study.parameters) * (weight_list.grid / weight_list.own_numerator)
    found = FromMean(distance=distance_from_mean(average, part, weight_list.own_numerator, others))
    owner.journal.write(owner.journal.round_folder(past.announcement.round) / _FROM_MEAN, found)


def kept_from_mean(owner: RequesterStudy, round_number: int) -> float:
    """Raises: ProtocolViolation, when a sum was taken without it"""
    kept = owner.journal.read(owner.journal.round_folder(round_number) / _FROM_MEAN, FromMean)
    if kept is None:
        raise ProtocolViolation(f"round {round_number}: the model stepped, and the distance from the mean was not kept")
    return kept.distance
