"""When the requester's study has its summary, and what becomes of one that cannot be had (docs/protocol.md 17).

Like a ranking, a summary that fails does not end a study that trains: ``summary.json`` then says why there is none.
"""

from __future__ import annotations

from client_agent.requester.plan import new_plan, situation
from client_agent.requester.round_result import Settled
from client_agent.requester.state import RoundPlan
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import EventKind, RoundEnd
from client_agent.study.summarising import SUMMARY_FILE, Summary, spec_of
from protocol.errors import PolicyRefusal
from protocol.messages.control import MOST_SUMMARY_ROUNDS, Announcement, Purpose
from protocol.rounds.planning import next_purpose

_OUT_OF_BOUNDS = (
    "the sum broke its bounds: a site or a server broke the protocol, and a summary is summed once per study"
)


def plan_round(owner: RequesterStudy) -> RoundPlan | None:
    """The next round; where no list for the summary passes, the one after it, None where there is nothing else.

    Raises: PolicyRefusal, when a site following the policy would decline; UnusableUpdate, this site's own
    """
    try:
        return new_plan(owner)
    except PolicyRefusal as refusal:
        if next_purpose(situation(owner)) is not Purpose.SUMMARY:
            raise
        _give_up(owner, owner.progress.next_round, refusal.detail)
        owner.keep(summarised=True)
    return new_plan(owner) if owner.study.rounds else None


def after_summary(owner: RequesterStudy, settled: Settled, announcement: Announcement) -> dict[str, object]:
    """Return the requester's state after a summary: summarised, one more try without those who declined, or no more
    tries.
    """
    number, tries = announcement.round, owner.progress.summary_rounds + 1
    declined = {refused.site for refused in settled.declines if not refused.passes}
    changes: dict[str, object] = {
        "too_few": False,
        "summary_rounds": tries,
        "summarised": settled.past is not None,
        "unsummarised": tuple(sorted({*owner.progress.unsummarised, *declined})),
    }
    if settled.past is not None:
        if settled.end is RoundEnd.DISCARDED:
            _give_up(owner, number, _OUT_OF_BOUNDS)
        return changes
    if tries >= MOST_SUMMARY_ROUNDS:
        _give_up(owner, number, f"{tries} rounds were skipped, the last one because: {settled.reason}")
        return changes | owner.after_skip(settled, number) | {"summarised": True}
    return changes | owner.after_skip(settled, number) | {"too_few": True}


def summary_missing(owner: RequesterStudy) -> str:
    """Why this study has no summary; "" where it has one, or asks for none."""
    found = owner.journal.read(owner.journal.folder / SUMMARY_FILE, Summary)
    return "" if found is None else found.problem


def _give_up(owner: RequesterStudy, number: int, problem: str) -> None:
    spec = spec_of(owner.study)
    none = Summary(
        study=owner.study.name,
        round=number,
        least_examples=spec.least_examples,
        rounded_to=spec.rounded_to,
        problem=problem,
    )
    owner.journal.write(owner.journal.folder / SUMMARY_FILE, none)
    owner.event(EventKind.STUDY, number, f"there is no summary: {problem}")
