"""A permit ends: from the next day on (UTC) this site leaves the study that it was given for, and deletes it.

The day was said with the word on the study (``moiety agent approve --until``). A study under way is left within the
hour, which its requester is told; it is deleted once it is over, or when the agent is started next, if that is sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import date

from client_agent.network.complaints import words_of
from client_agent.settings import AgentSettings
from client_agent.site.approval import approval_of
from client_agent.study.asked.at_hand import KnownStudy, audit_of, known_names, known_study
from client_agent.study.asked.deleting import delete_held, is_deleted
from host.audit_log import AGENT, Action
from protocol.errors import MoietyError
from protocol.messages.control import Roster
from protocol.roster.keyfile import PartyKeys


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
        _leave(settings, known, word.until)
        yield f"study {name}: {why}; this site has left it"
    if not works and not is_deleted(known.journal):
        said: list[str] = []
        receipt = delete_held(settings, keys, known, AGENT, why, clock, said.append)
        yield from said
        yield f"study {name}: {why}; {len(receipt.message.files)} files are deleted"


def _leave(settings: AgentSettings, known: KnownStudy, until: date) -> None:
    why = f"the permit ended on {until}"
    audit_of(settings).add(Action.LEFT, why, actor=AGENT, study=known.study.name, study_digest=known.study.digest())
    known.journal.leave(why)
