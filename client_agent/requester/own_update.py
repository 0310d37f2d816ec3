"""The requester's own update and models, as it alone has them (docs/protocol.md 8, 10).

A rule that weighs by risk needs the noise of the update and its distance from the mean of all. Neither leaves this
site, and both are journalled before the model steps, since they could not be told afterwards. The probe is the gradient
of the validation loss, with which every update's inner product is opened; it is encoded like an update of weight 1 and
leaves only as query shares.

Nothing of a local finish leaves this site either, and no other party can tell that there was one. It depends on the
shared model, the data and the seed alone: killed on the way, it is done again, to the same bits.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.net.watch import Stopped
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import METRICS, EventKind, RoundEnd, read_metrics, site_values
from client_agent.site.journal import (
    FinishedModel,
    Kept,
    KeptModel,
    finish_table,
    finished_model,
    kept_model,
    save_kept,
)
from client_agent.study.contribution import EncodedFile, journal_encoded
from client_agent.study.participant import Participant
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import check_finite, clip, decode
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.messages.control import Announcement, Purpose, StudyEndState
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


def keep_best(owner: RequesterStudy) -> None:
    """After a sum; nothing without a validation part. The earlier of two models with the same loss stays."""
    model, version = owner.require_model(), owner.state.model_version or 0
    loss, best = owner.learner.validation_loss(model), kept_model(owner.journal, Kept.BEST)
    if loss is None or not math.isfinite(loss):
        return
    if best is None or best.validation_loss is None or loss < best.validation_loss:
        save_kept(owner.journal, Kept.BEST, KeptModel(version=version, validation_loss=loss), model)


_FINISHED: Final = frozenset({StudyEndState.COMPLETED, StudyEndState.LOCAL_ONLY})
"""Ends that leave a shared model to go on from; a study that was cancelled or failed is not finished."""


def finish_locally(owner: RequesterStudy) -> None:
    """Finish once, where the study has a [finish], and record it. Raises: ConfigurationError"""
    table, end = finish_table(owner.journal), owner.progress.end
    if table is None or end is None or end.message.state not in _FINISHED:
        return
    facts = finished_model(owner.journal)
    if facts is None:
        owner.event(EventKind.STUDY, None, "local finish on this site's own data")
        version = owner.state.model_version or 0
        try:
            found = owner.learner.finish(owner.require_model())
        except UnusableUpdate as failed:
            facts = FinishedModel(choose=table.choose, shared_version=version, failed=failed.detail)
            owner.adopt_finished(facts, None)
        else:
            facts = FinishedModel(
                choose=table.choose, shared_version=version, pull=found.pull, seen=found.seen, held=found.held
            )
            owner.adopt_finished(facts, found.vector)
    if facts.failed:
        owner.problem(None, facts.text)
        return
    owner.record(
        owner.round_record(
            owner.progress.next_round,
            RoundEnd.FINISHED,
            reason=facts.text,
            model_version=facts.shared_version,
            pull=facts.pull,
        )
    )


def go_alone(owner: RequesterStudy) -> None:
    """The remaining rounds with this site's own clipped updates. Raises: Stopped, UnusableUpdate

    Not in a study with noise: the model would be no better, and spend more of the budget.
    """
    reason = owner.progress.why
    if owner.study.privacy is not None:
        return
    if owner.progress.alone:
        _keep_federated(owner)
        owner.event(EventKind.STUDY, owner.progress.next_round, "going on alone with this site's own data")
    while owner.progress.alone and owner.progress.updates_done < owner.study.rounds:
        if owner.context.stop.is_set():
            raise Stopped
        _round_alone(owner, owner.progress.next_round, reason)


def _keep_federated(owner: RequesterStudy) -> None:
    """The last model of the shared part stays, whatever this site makes of it alone; once, before the first round."""
    journal, version = owner.journal, owner.state.model_version or 0
    begun = any(record.state is RoundEnd.ALONE for record in read_metrics(journal.folder / METRICS))
    if version and not begun and kept_model(journal, Kept.FEDERATED) is None:
        save_kept(journal, Kept.FEDERATED, KeptModel(version=version), owner.require_model())


def _round_alone(owner: RequesterStudy, number: int, reason: str) -> None:
    if owner.state.last_recorded_round < number:
        update = owner.learner.update(owner.require_model(), number)
        check_finite(update, owner.layers)
        values, clipped = clip(update, owner.study.parameters.clip_norm)
        stepped = owner.learner.apply(owner.require_kept(), values.astype("float32"))
        version = (owner.state.model_version or 0) + 1
        # one write of the state steps the model and closes the round: a restart repeats both or neither
        record = owner.round_record(
            number,
            RoundEnd.ALONE,
            reason=reason,
            model_version=version,
            alphas=site_values((s.name, s.alpha) for s in owner.progress.rule_state.sites),
            requester_norm=float(math.sqrt(float((values * values).sum()))),
            clipped=clipped,
        )
        owner.adopt_model(stepped, version, last_recorded_round=number)
        owner.record_now(record)
    owner.keep(next_round=number + 1)
