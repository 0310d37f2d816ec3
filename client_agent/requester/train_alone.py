"""The requester's rounds with its own data alone, once the shared part ended as LOCAL_ONLY (docs/protocol.md 9)."""

from __future__ import annotations

import math

from client_agent.network.watch import Stopped
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import METRICS, EventKind, RoundEnd, RoundRecord, read_metrics, site_values
from client_agent.site.models.kept_model import Kept, KeptModel, kept_model, save_kept
from protocol.arithmetic.fixed_point import check_finite, clip


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
        record = RoundRecord(
            time_s=owner.context.clock.now(),
            study=owner.study.name,
            site=owner.context.site,
            round=number,
            state=RoundEnd.ALONE,
            reason=reason,
            model_version=version,
            alphas=site_values((s.name, s.alpha) for s in owner.progress.rule_state.sites),
            requester_norm=float(math.sqrt(float((values * values).sum()))),
            clipped=clipped,
        )
        owner.adopt_model(stepped, version, last_recorded_round=number)
        owner.record_now(record)
    owner.keep(next_round=number + 1)
