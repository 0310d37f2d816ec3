"""The requester's own models: the best shared one, the local finish, and training alone.

Nothing of a local finish leaves this site, and no other party can tell that there was one. It depends on the shared
model, the data and the seed alone: killed on the way, it is done again, to the same bits.
"""

from __future__ import annotations

import math
from typing import Final

from client_agent.net.watch import Stopped
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import METRICS, EventKind, RoundEnd, read_metrics, site_values
from client_agent.site.models import FinishedModel, Kept, KeptModel, finish_table, finished_model, kept_model, save_kept
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import UnusableUpdate
from protocol.messages.control import StudyEndState


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
