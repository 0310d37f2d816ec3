"""A person's word that this site takes part in a study, or not; without it nothing trains.

studies/NAME/approval.json   the word that counts, bound to the study's digest
approvals.jsonl              every word ever given at this site, appended
studies/NAME/by_policy.json  where no person is asked: the policy that let the study through
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from client_agent.site.journal import StudyJournal
from host.audit_log import Action, AuditLog
from host.files import append_durably
from protocol.errors import ConfigurationError
from protocol.policy.site_policy import SitePolicy

APPROVALS: Final = "approvals.jsonl"
_FILE: Final = "approval.json"
_BY_POLICY: Final = "by_policy.json"


class Approval(BaseModel):
    """``person`` said yes or no to the study of this digest, at ``time_s`` since 1970; a yes holds up to ``until``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    study_digest: str
    approved: bool
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)] = ""
    time_s: float
    until: date | None = None

    def is_over(self, now_s: float) -> bool:
        """Return whether the permit's last day, in UTC, has passed."""
        return self.approved and self.until is not None and datetime.fromtimestamp(now_s, UTC).date() > self.until


def approval_of(journal: StudyJournal, study_digest: str) -> Approval | None:
    """Return the word on this very study; None before there is one. Raises: ConfigurationError where it was of another
    one
    """
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
