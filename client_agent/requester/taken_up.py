"""A study that waits in the outbox becomes one of this requester's own, signed in its journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from client_agent.network.complaints import words_of
from client_agent.site.context import SiteContext
from client_agent.site.journal import StudyJournal
from client_agent.site.models.finished_model import FINISH
from client_agent.site.outbox import FINISH_SUFFIX, PRETRAINED_SUFFIX, REFUSAL, taken, waiting
from client_agent.study.pretrained import PRETRAINED
from host.files import write_durably
from protocol.errors import ConfigurationError, MoietyError, StorageFull
from protocol.messages.control import Signed, Study, sign
from protocol.policy.site_policy import check_study_allowed


def take_from_outbox(context: SiteContext, path: Path, report: Callable[[str, str], None]) -> None:
    """Sign the study at ``path`` into its journal, or put it aside and ``report`` why, with the study's name first.

    One that was withdrawn meanwhile (cancelled, or about to be written anew) is left alone; one that is being taken is
    withdrawn once it is in the journal.
    Raises: OSError, StorageFull, where a file cannot be read or written: the study waits on
    """
    with waiting(path) as content:
        if content is None:
            return
        try:
            _sign_into_journal(context, path, Study.parse(content))
        except StorageFull:
            raise
        except MoietyError as refused:
            report(path.stem, words_of(refused))
            write_durably(path.with_suffix(REFUSAL), words_of(refused).encode())
            path.replace(path.with_suffix(".refused"))
        else:
            taken(path)


def _sign_into_journal(context: SiteContext, path: Path, study: Study) -> None:
    """With what lies beside it. Raises: MoietyError, for a study that is refused; StorageFull, OSError"""
    context.held.require_pinned(study)
    check_study_allowed(study, context.policy)
    journal = StudyJournal(context.state_dir, study.name)
    known = journal.read(journal.folder / "study.json", Signed[Study])
    if known is not None and known.message != study:
        raise ConfigurationError(f"a study named {study.name!r} is here already; choose another name")
    if known is None:
        for suffix, name in ((PRETRAINED_SUFFIX, PRETRAINED), (FINISH_SUFFIX, FINISH)):
            beside = path.with_suffix(suffix)
            if beside.exists():
                beside.replace(journal.folder / name)
        journal.write(journal.folder / "study.json", sign(study, context.site, context.keys.signing))
