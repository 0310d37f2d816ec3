"""The requester's update as it alone sees it: noise, distance from the mean, probe (docs/protocol.md 8, 10).

A rule that weighs by risk needs the first two. Neither leaves this site, and both are journalled before the model
steps, since they could not be told afterwards. The probe is the gradient of the validation loss, with which every
update's inner product is opened; it is encoded like an update of weight 1 and leaves only as query shares.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.requester.study import RequesterStudy
from client_agent.study.contribution import EncodedFile, journal_encoded
from client_agent.study.participant import Participant
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import decode
from protocol.errors import ProtocolViolation
from protocol.messages.control import Announcement, Purpose
from protocol.protection.shares import CHUNK, encode_update
from protocol.rounds.evidence import PastRelease
from protocol.rules.interface import RiskRule, Rule
from protocol.rules.shrinkage import distance_from_mean

_NOISE: Final = "own_noise.json"
_FROM_MEAN: Final = "from_mean.json"


class OwnNoise(Frozen):
    """tr Cov of the clipped update, and its standard error."""

    variance: float
    error: float


class FromMean(Frozen):
    """The distance of the update from the plain mean of everybody's."""

    distance: float


def learns_from(rule: Rule, purpose: Purpose) -> bool:
    """Return whether a rule that weighs by risk learns from such a round: a measurement, or any sum of updates."""
    return isinstance(rule, RiskRule) and purpose is (Purpose.MEASURE if rule.measures else Purpose.UPDATE)


def own_noise(owner: RequesterStudy, round_number: int) -> OwnNoise:
    """Return the noise of the round's update; estimated the first time.

    Requires: the model is still the round's
    Raises:   UnusableUpdate, where the estimate has too few examples, or none that stand by themselves
    """

    def estimated() -> OwnNoise:
        with owner.stopwatch.phase("own noise"):
            found = owner.learner.update_noise(owner.require_model(), round_number)
        return OwnNoise(variance=found.variance, error=found.error)

    return owner.journal.once(owner.journal.round_folder(round_number) / _NOISE, OwnNoise, estimated)


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


_ENCODED: Final = "probe.ring"
_RECORD: Final = "probe.json"


class Probe(Frozen):
    """||v|| of the clipped probe v, and <g_0, v> with the requester's own clipped update."""

    norm: float
    inner_product: float


def make_probe(owner: Participant, announcement: Announcement) -> Probe:
    """The round's probe, encoded in the journal; computed only the first time.

    Requires: the round's own update is encoded
    Raises:   UnusableUpdate; ConfigurationError without validation examples
    """
    round_number = announcement.round
    folder = owner.journal.round_folder(round_number)
    known = owner.journal.read(folder / _RECORD, Probe)
    if known is not None and (folder / _ENCODED).exists():  # as with the update
        return known
    with owner.stopwatch.phase("probing"):
        vector = owner.learner.probe(owner.require_model())
        parameters = owner.study.parameters
        seed = owner.context.randomness.bytes(32, f"probe rounding {owner.study_digest} round {round_number}")
        made = encode_update(vector, owner.layers, 1.0, parameters, seed)
        encoded = journal_encoded(made, folder / _ENCODED, 1.0, parameters.weight_grid)
        own, products = owner.encoded_file(announcement), []
        source = probe_file(owner, round_number)
        for start in range(0, parameters.dimension, CHUNK):
            stop = min(start + CHUNK, parameters.dimension)
            mine, theirs = (decode(of(start, stop), parameters) for of in (own, source))
            products.append(float(np.dot(mine, theirs)))
    probe = Probe(norm=encoded.norm, inner_product=math.fsum(products))
    owner.journal.write(folder / _RECORD, probe)
    return probe


def probe_file(owner: Participant, round_number: int) -> EncodedFile:
    """Chunk access to the encoded probe."""
    return owner.encoded_at(round_number, _ENCODED, owner.study.parameters.dimension)
