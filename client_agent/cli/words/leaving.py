"""``moiety agent leave``."""

from __future__ import annotations

import sys

from client_agent.cli.lines import json_line
from client_agent.settings import AgentSettings
from client_agent.site.identity import load_identity
from client_agent.site.journal import StudyJournal
from client_agent.study.asked.at_hand import note_left
from protocol.bodies.letter import told
from protocol.errors import ConfigurationError
from protocol.printable import printable


def leave_study(settings: AgentSettings, name: str, person: str, reason: str, *, json_output: bool) -> None:
    """Mark the journal, for the agent that runs or is started next. Raises: ConfigurationError"""
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}: end it with 'moiety study cancel {name}'")
    if not (settings.state_dir / "studies" / name / "study.json").exists():
        raise ConfigurationError(
            f"this site takes no part in a study {name!r}; to stay out of one, name the others in 'studies'"
        )
    journal = StudyJournal(settings.state_dir, name)
    state = journal.site_state()
    if state is not None and state.over:
        raise ConfigurationError(f"study {name!r} is over at this site ({printable(state.finished or '')})")
    note_left(settings, name, person, reason)
    journal.leave(told(reason))
    if json_output:
        json_line({"study": name, "left": True, "reason": told(reason)})
    else:
        sys.stdout.write(
            f"this site's agent contributes to no further round of study {name} and tells the requester so; what is in "
            "sums that were released stays there. A round that it has contributed to already goes on\n"
        )
