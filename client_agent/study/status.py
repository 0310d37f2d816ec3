"""The state of a site, from its state folder alone: for the command line and the page, agent running or not."""

from __future__ import annotations

from client_agent.net.contacts import CONTACTS, Contact, read_notes
from client_agent.settings import AgentSettings
from client_agent.site.events import METRICS, RoundRecord, last_metrics
from client_agent.site.identity import load_identity
from client_agent.site.journal import Awaited, read_awaited
from client_agent.site.notifications import NOTICES, PROBLEMS, Problem, Sent
from client_agent.site.privacy_budget import MEMORY, BudgetReport, budget_memory, budget_report
from client_agent.study.approval import Approval, KnownStudy, approval_of, known_studies
from host.folder_lock import holder_of
from host.frozen import Frozen
from protocol.messages.control import Roster

STOPPED_FIX = "mend it, then start the agent again"


class StudyStanding(Frozen):
    """One study here. ``round`` is the last that this site recorded; ``absent`` who was not in it, at the requester.

    ``awaited`` are the sites that a requester's study waits for before its first round.
    """

    study: str
    digest: str
    state: str
    waits: bool
    over: bool
    approval: Approval | None
    paused: str | None
    left: str | None
    rounds: int
    round: int | None = None
    round_state: str | None = None
    took_part: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    own_weight: float | None = None
    isolation: float | None = None
    problem: Problem | None = None
    awaited: Awaited | None = None
    stopped: str = ""


class SiteStanding(Frozen):
    """``holder``: the process that runs this site's agent, None where none does; ``problem`` concerns all studies.

    ``undelivered`` is word of studies that wait, which did not get through.
    """

    site: str
    federation: str
    asks: bool
    holder: str | None
    servers: tuple[Contact, ...]
    budget: BudgetReport | None
    problem: Problem | None
    undelivered: tuple[Sent, ...]
    studies: tuple[StudyStanding, ...]


def standing(settings: AgentSettings) -> SiteStanding:
    """Reads, and writes nothing. Raises: ConfigurationError, BadSignature"""
    roster, came_with = load_identity(settings)
    problems = _problems(settings)
    studies = tuple(_study(known, problems) for known in known_studies(settings, roster))
    waiting = {one.digest for one in studies if one.waits and not one.over}
    notices = read_notes(settings.state_dir / NOTICES, Sent)
    return SiteStanding(
        site=settings.site,
        federation=roster.federation,
        asks=settings.site == roster.requester,
        holder=holder_of(settings.state_dir),
        servers=contacts_of(settings, roster),
        budget=budget_of(settings, came_with),
        problem=problems.get(""),
        undelivered=tuple(one for one in notices if one.failure and one.study_digest in waiting),
        studies=studies,
    )


def study_standing(settings: AgentSettings, known: KnownStudy) -> StudyStanding:
    return _study(known, _problems(settings))


def _problems(settings: AgentSettings) -> dict[str, Problem]:
    """Map a study to its last problem; "" to what concerns all of them."""
    return {one.study: one for one in read_notes(settings.state_dir / PROBLEMS, Problem)}


def contacts_of(settings: AgentSettings, roster: Roster) -> tuple[Contact, ...]:
    known = {one.server: one for one in read_notes(settings.state_dir / CONTACTS, Contact)}
    names = (roster.operator_a.name, roster.operator_b.name)
    return tuple(known.get(name, Contact(server=name)) for name in names)


def budget_of(settings: AgentSettings, came_with: str) -> BudgetReport | None:
    """None where there is neither a budget nor anything spent."""
    if settings.policy.epsilon is None and not (settings.state_dir / MEMORY).exists():
        return None
    memory = budget_memory(settings.state_dir, came_with)
    if settings.policy.epsilon is None and not memory.trainings:
        return None
    return budget_report(memory, settings.policy)


def own_weight(record: RoundRecord) -> float | None:
    """Return the weight that this site gave itself, or else the list's."""
    if record.own_weight is not None:
        return record.own_weight
    listed = [one.numerator for one in record.weights if one.site == record.site]
    return listed[0] / record.grid if listed else None


def _study(known: KnownStudy, problems: dict[str, Problem]) -> StudyStanding:
    last = last_metrics(known.journal.folder / METRICS)
    return StudyStanding(
        study=known.study.name,
        digest=known.study.digest(),
        state=known.state,
        waits=known.waits,
        over=known.over,
        approval=approval_of(known.journal, known.study.digest()),
        paused=known.paused,
        left=known.left,
        rounds=known.study.rounds,
        problem=None if known.over else problems.get(known.study.name),
        awaited=read_awaited(known.journal),
        stopped=known.stopped,
        **({} if last is None else _round(last)),
    )


def _round(record: RoundRecord) -> dict[str, object]:
    return {
        "round": record.round,
        "round_state": record.state.value,
        "took_part": record.took_part,
        "absent": tuple(one.said for one in record.absences),
        "own_weight": own_weight(record),
        "isolation": record.isolation,
    }
