"""The studies that a site knows, how each stands, what it waits for, and its people's word on them.

For the command line and the page, from the state folder alone, beside an agent that runs or not: they read the journal
and write words alone. Without a person's yes nothing trains.

studies/NAME/approval.json   the word that counts, bound to the study's digest
approvals.jsonl              every word ever given at this site, appended
studies/NAME/by_policy.json  where no person is asked: the policy that let the study through
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from client_agent.net.contacts import CONTACTS, Contact, read_notes
from client_agent.settings import AgentSettings
from client_agent.site.events import METRICS, RoundRecord, last_metrics
from client_agent.site.identity import load_identity
from client_agent.site.journal import Awaited, StudyJournal, read_awaited
from client_agent.site.notifications import NOTICES, PROBLEMS, Problem, Sent
from client_agent.site.privacy_budget import MEMORY, BudgetReport, budget_memory, budget_report
from host.audit_log import AGENT, Action, AuditLog
from host.files import append_durably
from host.folder_lock import holder_of
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Signed, Study, StudyEnd
from protocol.messages.letter import told
from protocol.policy.site_policy import SitePolicy
from protocol.text import printable

APPROVALS: Final = "approvals.jsonl"
_FILE: Final = "approval.json"
_BY_POLICY: Final = "by_policy.json"


class Approval(Frozen):
    """``person`` said yes or no to the study of this digest, at ``time_s`` since 1970; a yes holds up to ``until``."""

    study: str
    study_digest: str
    approved: bool
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)] = ""
    time_s: float
    until: date | None = None

    def is_over(self, now_s: float) -> bool:
        return self.approved and self.until is not None and datetime.fromtimestamp(now_s, UTC).date() > self.until


def approval_of(journal: StudyJournal, study_digest: str) -> Approval | None:
    """The word on this study; None before there is one. Raises: ConfigurationError where it was on another one"""
    found = journal.read(journal.folder / _FILE, Approval)
    if found is not None and found.study_digest != study_digest:
        raise ConfigurationError(
            f"study {found.study!r}: the approval of {found.person!r} is for another study of that name "
            f"({found.study_digest[:16]}..., this one is {study_digest[:16]}...): look at it and say yes or no again"
        )
    return found


def allowed_by_policy(journal: StudyJournal, policy: SitePolicy, note: Callable[[str], None]) -> None:
    """Allow a study by policy, where no person is asked: ``note`` puts the policy into the audit log, once."""
    file = journal.folder / _BY_POLICY
    if not file.exists():
        said = policy.model_dump_json(exclude_defaults=True)
        note(f'no person is asked here (approve = "policy"); the policy: {said}')
        journal.write(file, policy)


def give(state_dir: Path, journal: StudyJournal, word: Approval, audit: AuditLog) -> None:
    """Keep it; the lists of all words first, so that none counts that is not in them."""
    audit.add(
        Action.APPROVED if word.approved else Action.DECLINED,
        word.reason if word.until is None else f"{word.reason} (until {word.until})".lstrip(),
        actor=word.person,
        study=word.study,
        study_digest=word.study_digest,
    )
    append_durably(state_dir / APPROVALS, word.model_dump_json().encode() + b"\n")
    journal.write(journal.folder / _FILE, word)


@dataclass(frozen=True)
class Word:
    """A person's word on a study, in the words of the command line or a form."""

    approved: bool
    person: str
    reason: str = ""
    until: date | None = None
    """The last day on which this site takes part; None: the study's end."""


@dataclass(frozen=True)
class KnownStudy:
    """``waits``: a person has not said yes or no; ``stopped``: why the agent stopped it until something is mended.

    ``left`` and ``paused`` are the reasons of whoever took this site out of the study or paused it; None otherwise.
    """

    study: Study
    journal: StudyJournal
    waits: bool
    over: bool
    left: str | None
    paused: str | None
    stopped: str
    finished: str
    end: Signed[StudyEnd] | None

    @property
    def may_go(self) -> bool:
        """Return whether nothing of it is needed here any more: it is over, was never begun, or this site left it."""
        return self.over or self.left is not None or self.journal.is_withdrawn

    @property
    def standing(self) -> tuple[str, str]:
        """The state in a word or two, and why it is so or what to do."""
        if self.over:
            return "over", self.finished
        if self.journal.is_withdrawn:
            return "withdrawn", "it was cancelled before a server had it"
        if self.left is not None:
            return "left by this site", self.left
        if self.waits:
            return "waits for a person", f"moiety agent approve {self.study.name}"
        if self.paused is not None:
            return "paused here", f"{self.paused}; moiety agent resume {self.study.name}"
        return ("stopped", self.stopped) if self.stopped else ("under way", "")

    @property
    def state(self) -> str:
        """The same in one line."""
        return ": ".join(filter(None, self.standing))


def known_studies(settings: AgentSettings, roster: Roster) -> Iterator[KnownStudy]:
    """Return studies by name. Raises: ConfigurationError for a journal that cannot be read"""
    for name in known_names(settings):
        yield known_study(settings, roster, name)


def known_names(settings: AgentSettings) -> tuple[str, ...]:
    """Return the names of all studies here, in order, whether their journals can be read or not."""
    return tuple(path.parent.name for path in sorted((settings.state_dir / "studies").glob("*/study.json")))


def known_study(settings: AgentSettings, roster: Roster, name: str) -> KnownStudy:
    """Raises: ConfigurationError, also where this site knows no study of that name"""
    if not (settings.state_dir / "studies" / name / "study.json").exists():
        raise ConfigurationError(
            f"this site knows no study {name!r}: its agent finds studies at the servers while it runs, those of "
            "'studies' in its settings"
        )
    journal = StudyJournal(settings.state_dir, name)
    signed = journal.read(journal.folder / "study.json", Signed[Study])
    if signed is None:
        raise ConfigurationError(f"{journal.folder / 'study.json'} is empty; restore it from a backup")
    study, state = signed.message, journal.site_state()
    asks = settings.approve == "manual" and settings.site != roster.requester
    return KnownStudy(
        study=study,
        journal=journal,
        waits=asks and approval_of(journal, study.digest()) is None,
        over=state is not None and state.over,
        left=journal.left,
        paused=journal.paused,
        stopped=journal.stopped_because,
        finished=(state.finished or "") if state is not None else "",
        end=state.ended_by if state is not None else None,
    )


def keep_word(settings: AgentSettings, name: str, word: Word, digest: str) -> None:
    """A yes or no to the study of this digest, for the agent that runs or starts next. Raises: ConfigurationError"""
    known = study_to_decide(settings, name)
    if known.study.digest() != digest:
        raise ConfigurationError(f"study {name!r} is another one than was shown: look at it again")
    if not word.person.strip():
        raise ConfigurationError("a word on a study needs the name of the person who gives it")
    if word.until is not None and word.until < datetime.now(UTC).date():
        raise ConfigurationError(f"option --until: {word.until} has passed; give the permit's last day")
    found = Approval(
        study=name,
        study_digest=digest,
        approved=word.approved,
        person=word.person.strip(),
        reason=word.reason,
        time_s=time.time(),
        until=word.until,
    )
    give(settings.state_dir, known.journal, found, AuditLog(settings.state_dir, settings.site))
    if not word.approved:
        known.journal.leave(word.reason)


def pause_study(settings: AgentSettings, name: str, person: str, reason: str) -> None:
    """This site neither trains nor contributes until it is resumed, restarts included. Raises: ConfigurationError"""
    known = _under_way(settings, name)
    if not person.strip():
        raise ConfigurationError("a pause needs the name of the person who asks for it")
    said = f"{person.strip()}: {reason}" if reason else person.strip()
    note(settings, known.study, Action.PAUSED, reason, person.strip())
    known.journal.pause(told(said))


def leave_study(settings: AgentSettings, name: str, person: str, reason: str) -> None:
    """This site contributes to no further round, for good. Raises: ConfigurationError"""
    known = _under_way(settings, name, f"end it with 'moiety study cancel {name}'")
    note(settings, known.study, Action.LEFT, reason, (person or AGENT).strip())
    known.journal.leave(told(f"{person.strip()}: {reason}" if person.strip() else reason))


def resume_study(settings: AgentSettings, name: str) -> None:
    """Resume a study: from the next round on this site takes part again. Raises: ConfigurationError"""
    known = _under_way(settings, name)
    if known.paused is None:
        raise ConfigurationError(f"study {name!r} is not paused at this site")
    note(settings, known.study, Action.RESUMED)
    known.journal.resume()


def note_exported(settings: AgentSettings, study: Study, into: str, model_sha256: str) -> None:
    """A model of it was written for people, into a folder of this name."""
    note(settings, study, Action.MODEL_EXPORTED, f"into {into}, SHA-256 of the values {model_sha256}")


def note(settings: AgentSettings, study: Study, action: Action, detail: str = "", actor: str = AGENT) -> None:
    """Add a line on a study to this site's audit log."""
    log = AuditLog(settings.state_dir, settings.site)
    log.add(action, detail, actor=actor, study=study.name, study_digest=study.digest())


def study_to_decide(settings: AgentSettings, name: str, instead: str = "") -> KnownStudy:
    """A study that this site's people may still decide on; ``instead``: what its requester does.

    Raises: ConfigurationError at its requester, and once it is over
    """
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        own = instead or f"'moiety study create' was its word, and 'moiety study cancel {name}' ends it"
        raise ConfigurationError(f"this site asked for study {name!r}: {own}")
    known = known_study(settings, roster, name)
    if known.over:
        raise ConfigurationError(f"study {name!r} is over at this site ({printable(known.finished)})")
    return known


def _under_way(
    settings: AgentSettings, name: str, instead: str = "stop its agent to pause it, start it to go on"
) -> KnownStudy:
    known = study_to_decide(settings, name, instead)
    if known.left is not None:
        raise ConfigurationError(f"this site has left study {name!r} for good")
    return known


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
