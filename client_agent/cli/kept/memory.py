"""``moiety agent forget-memory``: an operator's word that sums are lost for this site's memory (docs/joining.md)."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from client_agent.settings import AgentSettings
from client_agent.site.connections import Site, one_agent
from client_agent.site.reconciling import lost_rounds
from client_agent.site.remembered_sums import sum_memory
from host.randomness import SystemRandomness

_FORGOTTEN: Final = (
    "Sums over this site's updates were opened in these rounds, and nothing here remembers their weights. Later sums "
    "over the same data may complete them: together they can show single updates of this site, and no check of this "
    "site will notice. Restoring the newest backup of the state folder avoids that; this command cannot be undone."
)


def forget_memory(settings: AgentSettings, *, yes: bool) -> None:
    """Show the rounds that servers have this site's receipts for and its memory lacks; with ``yes``, go on without.

    Raises: ConfigurationError while the agent runs; Unavailable while a server is away
    """
    with one_agent(settings), Site(settings) as site:
        draw = partial(SystemRandomness().bytes, 32, "sketch")
        sums = sum_memory(settings.state_dir, site.came_with, draw)
        lost = lost_rounds(sums, site.clients, site.roster, settings.site)
        if not lost:
            sys.stdout.write("nothing is lost: the memory knows every round that the servers have receipts for\n")
            return
        for found in lost:
            sys.stdout.write(f"{found.study} round {found.round}\n")
        sys.stdout.write(_FORGOTTEN + "\n")
        if yes:
            sums.forget([(found.study_digest, found.round) for found in lost])
            sys.stdout.write(f"{len(lost)} rounds are forgotten; this site contributes again\n")
        else:
            sys.stdout.write("nothing was changed; to go on without them, run this again with --yes\n")
