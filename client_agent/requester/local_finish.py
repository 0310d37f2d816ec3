"""The requester's local finish, once the shared part is over: its last model moved on its own examples, by itself.

Nothing of it leaves this site, and no other party can tell that there was one. What it depends on, the shared model,
the data and the seed, is in the journal: killed on the way, it is done again, to the same bits.
"""

from __future__ import annotations

from typing import Final

from client_agent.requester.study import RequesterStudy
from client_agent.site.events import EventKind, RoundEnd, RoundRecord
from client_agent.site.models.finished_model import FinishedModel, finish_table, finished_model
from protocol.errors import UnusableUpdate
from protocol.messages.control import StudyEndState

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
        RoundRecord(
            time_s=owner.context.clock.now(),
            study=owner.study.name,
            site=owner.context.site,
            round=owner.progress.next_round,
            state=RoundEnd.FINISHED,
            reason=facts.text,
            model_version=facts.shared_version,
            pull=facts.pull,
        )
    )
