"""Delete for good what a site holds of a study that is over, with a signed receipt of every file.

What stays: the signed study and the words that people gave, who took part and why it ended (``site.json`` without
keys), the audit log, the ledger of bytes; and the memory of sums, of cohorts and of the budget, which is no study's but
the data's: without it later sums could complete earlier ones (docs/protocol.md 13).

A permit ends: from the next day on (UTC) this site leaves the study that it was given for, and deletes it. The day was
said with the word on the study (``moiety agent approve --until``). A study under way is left within the hour, which its
requester is told; it is deleted once it is over, or when the agent is started next, if that is sooner.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from client_agent.net.watch import words_of
from client_agent.settings import AgentSettings
from client_agent.site.connections import one_agent
from client_agent.site.identity import load_chain
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.study.approval import KnownStudy, approval_of, known_names, known_study, note
from host.audit_log import AGENT, Action
from host.files import sync_folder
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Roster, Signed, sign
from protocol.messages.study import MOST_FILES, DeletedFile, DeletionReceipt
from protocol.roster.keyfile import PartyKeys
from protocol.text import printable

RECEIPT: Final = "deletion.json"
_STAY: Final = frozenset({"study.json", "approval.json", "site.json", "left.txt", RECEIPT})


def delete_study(
    settings: AgentSettings,
    name: str,
    person: str,
    reason: str,
    clock: Callable[[], float] = time.time,
    say: Callable[[str], None] = lambda text: None,
) -> Signed[DeletionReceipt]:
    """The receipt, which also lies in the study's folder; done before, the same receipt again.

    A deletion that something kept from its end goes on from its receipt; ``say`` hears of that, and of one done before.

    Raises: ConfigurationError, while the agent runs, before the study is over here, or without a person's name
    """
    if not person.strip():
        raise ConfigurationError("deleting needs the name of the person who asks for it: --person")
    with one_agent(settings):
        chain, keys = load_chain(settings)
        known = known_study(settings, chain.head, name)
        if not known.may_go:
            raise ConfigurationError(
                f"study {name!r} is not over at this site: it is deleted once it has ended, or this site left it"
            )
        return delete_held(settings, keys, known, person.strip(), reason, clock, say)


def delete_held(
    settings: AgentSettings,
    keys: PartyKeys,
    known: KnownStudy,
    person: str,
    reason: str,
    clock: Callable[[], float],
    say: Callable[[str], None] = lambda text: None,
) -> Signed[DeletionReceipt]:
    """As ``delete_study``, for whoever holds the state folder and knows that nothing works on this study there."""
    journal, name = known.journal, known.study.name
    begun = journal.read(journal.folder / RECEIPT, Signed[DeletionReceipt])
    if begun is not None and is_deleted(journal):
        say(f"study {name} was deleted before, as {printable(begun.message.person)} asked; nothing is left to delete")
        return begun
    receipt = DeletionReceipt(
        study=name,
        study_digest=known.study.digest(),
        site=settings.site,
        person=person,
        reason=reason,
        at_s=int(clock()),
        files=_listed(journal.folder),
    )
    if begun is not None:
        receipt = _going_on(begun.message, receipt)
    done = sign(receipt, keys.name, keys.signing)
    if begun is None or receipt != begun.message:
        journal.write(journal.folder / RECEIPT, done)
    sync_folder(journal.folder)  # before the first file goes: what is listed is gone at the end
    said = f"{reason}; {len(receipt.files)} files, receipt {receipt.digest()}"
    if begun is not None:
        before = f"the deletion that {printable(begun.message.person)} asked for and that was not ended"
        say(f"study {name}: this goes on with {before}")
        said = f"goes on with {before}; {said}"
    note(settings, known.study, Action.DELETED, said, person)
    _empty(journal)
    return done


def is_deleted(journal: StudyJournal) -> bool:
    """Return whether nothing is left in a study's folder but what stays, and no key in that."""
    if not (journal.folder / RECEIPT).exists() or next(_files(journal.folder), None) is not None:
        return False
    state = journal.site_state()
    return state is None or state == _without_keys(state, journal.left)


def _listed(folder: Path) -> tuple[DeletedFile, ...]:
    files = tuple(_files(folder))
    if len(files) > MOST_FILES:
        raise ConfigurationError(
            f"{folder} holds {len(files):,} files, and a receipt of deletion lists at most {MOST_FILES:,}: take those "
            "that this site does not need, such as the oldest of transcripts/, out by hand, note which, and run this "
            "again"
        )
    return files


def _going_on(begun: DeletionReceipt, now: DeletionReceipt) -> DeletionReceipt:
    """A deletion that was not ended: its receipt as it was, unless files came or changed since, which it then lists."""
    listed, held = ({one.path: one for one in receipt.files} for receipt in (begun, now))
    if held.items() <= listed.items():
        return begun
    files = {**listed, **held}
    return begun.model_copy(update={"files": tuple(files[path] for path in sorted(files)), "at_s": now.at_s})


def _files(folder: Path) -> Iterator[DeletedFile]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and str(path.relative_to(folder)) not in _STAY:
            yield DeletedFile(path=str(path.relative_to(folder)), size_bytes=path.stat().st_size, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _empty(journal: StudyJournal) -> None:
    state = journal.site_state()
    if state is not None:
        journal.write_site_state(_without_keys(state, journal.left))
    for path in sorted(journal.folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in _STAY:
            path.unlink()
    sync_folder(journal.folder)


def _without_keys(state: SiteState, left: str | None) -> SiteState:
    """Return how the study ended at this site, and nothing that opens, continues or repeats anything of it."""
    ended = state.finished is None and left is not None
    return SiteState(
        study_digest=state.study_digest,
        training_seed=0,
        last_recorded_round=state.last_recorded_round,
        finished=f"left by this site: {left}" if ended else state.finished,
        ended_by=state.ended_by,
        refused=state.refused or ended,
    )


def end_permits(
    settings: AgentSettings, roster: Roster, keys: PartyKeys, running: Collection[str], clock: Callable[[], float]
) -> list[str]:
    """End expired permits; return what was done, and what could not be, in words. ``running`` names the studies that
    threads work on.

    A study whose journal cannot be read, or that cannot be deleted, keeps no other one's permit from ending.
    """
    said: list[str] = []
    for name in known_names(settings):
        try:
            known = known_study(settings, roster, name)
            said += _ended(settings, keys, known, works=name in running, clock=clock)
        except (MoietyError, OSError) as failed:
            said.append(
                f"study {name}: its permit could not be looked at, or not ended where it is over: {words_of(failed)}"
            )
    return said


def _ended(
    settings: AgentSettings, keys: PartyKeys, known: KnownStudy, *, works: bool, clock: Callable[[], float]
) -> Iterator[str]:
    """Each thing once it is done; ``works``: whether a thread works on the study. Raises: MoietyError, OSError"""
    word = approval_of(known.journal, known.study.digest())
    if word is None or word.until is None or not word.is_over(clock()):
        return
    name, why = known.study.name, f"the permit ended on {word.until}"
    if not known.over and known.left is None:
        note(settings, known.study, Action.LEFT, why)
        known.journal.leave(why)
        yield f"study {name}: {why}; this site has left it"
    if not works and not is_deleted(known.journal):
        said: list[str] = []
        receipt = delete_held(settings, keys, known, AGENT, why, clock, said.append)
        yield from said
        yield f"study {name}: {why}; {len(receipt.message.files)} files are deleted"
