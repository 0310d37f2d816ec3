"""A sum whose tags were wrong, asked for once more without the site that made them wrong, over the same shares.

The difference of what the two would open is that site's update.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.scripted.tagged import TaggedSites, tagged_study
from harness.adversaries.scripted_rounds import GRID, REQUESTER, SITES, SMALL, VICTIM, small_update
from harness.federation.memory.servers import ServersInMemory
from protocol.parameters import TAG_COORDINATES
from protocol.rounds.side_b import Reply
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.messages import RoundView

_NUMBER: Final = 1


class RetryWithout(Attack):
    """After both servers have committed to a sum, and again after its tags were found wrong, a smaller release set."""

    name = "tags-retry-without-a-site"
    party = Party.REQUESTER
    tries = "has the same shares summed once more without the site whose tags were wrong"
    defence = "one release set per round, for ever; what follows a failed sum is a new round with new shares"
    figure = "servers that took a smaller release set"
    without: Mapping[str, object] = {"servers.rounds.release.answer": lambda *_: Reply.KEEP}

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            sites = TaggedSites(servers, tagged_study(servers, SMALL, "retry"))
            try:
                taken = self._taken(sites)
            finally:
                sites.close()
        return Found(taken > 0, taken)

    def _taken(self, sites: TaggedSites[ServersInMemory]) -> int:
        sites.create()
        announcement = sites.announcement(_NUMBER, listed=SITES[1:])
        sites.announce(announcement)
        draw = np.random.default_rng(5)
        x = {site: small_update(draw, SMALL) for site in SITES}
        vectors = {site: sites.with_tags(x[site], announcement) for site in SITES}
        vectors[VICTIM][-TAG_COORDINATES:][:1] += np.uint64(1)
        sites.contribute_all(announcement, vectors)
        current = sites.measured(_NUMBER, x[REQUESTER], dict.fromkeys(SITES[1:], GRID))
        sites.release(current)
        views = sites.committed(_NUMBER)
        taken = _asked_again(sites, current)
        if taken:
            return taken
        sites.fail(sites.failed(views))
        return _asked_again(sites, current)


def _asked_again(sites: TaggedSites[ServersInMemory], current: RoundView) -> int:
    """How many servers take the smaller set."""
    body = sites.release_body(current, [site for site in SITES if site != VICTIM])
    path = sites.path(paths.RELEASE_SET, round=_NUMBER, attempt=1)
    return sum(sites.me.send(side, "PUT", path, body).is_success for side in Side)


def retries() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (RetryWithout(),)
