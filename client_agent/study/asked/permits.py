"""A permit ends: from the next day on (UTC) this site leaves the study that it was given for, and deletes it.

The day was said with the word on the study (``moiety agent approve --until``). A study under way is left within the
hour, which its requester is told; it is deleted once it is over, or when the agent is started next, if that is sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import date

from client_agent.settings import AgentSettings
from client_agent.site.approval import approval_of
from client_agent.study.asked.at_hand import KnownStudy, audit_of, known_studies
from client_agent.study.asked.deleting import delete_held, is_deleted
from host.audit.entry import AGENT, Action
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Roster


def end_permits(
    settings: AgentSettings, roster: Roster, keys: PartyKeys, running: Collection[str], clock: Callable[[], float]
) -> list[str]:
    """What was done, in words. ``running`` names the studies that threads work on.

    Raises: ConfigurationError for a journal that cannot be read; StorageFull
    """
    done = []
    for known in known_studies(settings, roster):
        word = approval_of(known.journal, known.study.digest())
        if word is None or word.until is None or not word.is_over(clock()):
            continue
        name, why = known.study.name, f"the permit ended on {word.until}"
        if not known.over and known.left is None:
            _leave(settings, known, word.until)
            done.append(f"study {name}: {why}; this site has left it")
        if name not in running and not is_deleted(known.journal.folder):
            receipt = delete_held(settings, keys, known, AGENT, why, clock)
            done.append(f"study {name}: {why}; {len(receipt.message.files)} files are deleted")
    return done


def _leave(settings: AgentSettings, known: KnownStudy, until: date) -> None:
    why = f"the permit ended on {until}"
    audit_of(settings).add(Action.LEFT, why, actor=AGENT, study=known.study.name, study_digest=known.study.digest())
    known.journal.leave(why)
