"""A round of two real servers in which one party does something else: who is in it, what comes twice, what piles up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.attack import Attempt, Found, taken_out
from harness.adversaries.refused_messages import ANY_HEADER, ANY_RELEASE
from harness.adversaries.scripted_agents import PARTIES, ROSTER
from harness.adversaries.scripted_requester import TaggedSites, tagged_study
from harness.adversaries.scripted_rounds import (
    EARLY,
    GRID,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    Phase,
    pair_in_memory,
    refusals,
    small_update,
)
from harness.engine.parties import SiteEntry, make_parties
from harness.federation.memory.servers import ServersInMemory
from protocol.channel.sealing import sealed_small_length
from protocol.errors import MoietyError
from protocol.messages import control, paths
from protocol.messages.control import Roster, RoundView, Signed, countersign
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.peer import CollectedSet
from protocol.parameters import TAG_COORDINATES, Needs
from protocol.roster.keyfile import dump_roster, parse_roster
from protocol.sharing import Side
from servers.rounds import collect
from servers.server import Server
from servers.store.study_records import RoundRecord

_SYBILS: Final = 5
_CONFLICTS: Final = 105
_MOST_RECORDED: Final = 100
_EVERYBODY: Final = (*SITES, STRANGER)


def _made_up_sites(folder: Path) -> Found:
    """One hospital adds sites of its own to the roster and signs it as who it is."""
    me = ROSTER.contributors[0].name
    entries = [SiteEntry(f"sybil-{number}", 50) for number in range(_SYBILS)]
    made_up = make_parties("sybils", entries[0].name, entries, bytes([7]) * 32).roster.message.sites
    grown = ROSTER.model_copy(update={"sites": (*ROSTER.sites, *made_up)})
    signed = Signed[Roster](message=grown, signatures=PARTIES.roster.signatures)
    path = folder / "roster.toml"
    path.write_text(dump_roster(countersign(signed, me, PARTIES.keys_of(me).signing)))
    try:
        taken = control.require_roster(parse_roster(path.read_text(), "roster.toml"))
    except MoietyError as refused:
        return Found(False, 0, refused.detail)
    more = len(taken.sites) - len(ROSTER.sites)
    return Found(more > 0, more)


def _share_again(folder: Path) -> Found:
    """The bytes of a share that a server took in one round, sent again in the next."""
    with pair_in_memory(folder) as pair:
        before = pair.round(opens=Needs.NOTHING)
        before.finish()
        opened = pair.round(opens=Needs.NOTHING)
        opened.advance(Phase.COLLECTING)
        old = before.honest[VICTIM]
        taken = sum(opened.put(VICTIM, side, old[side].sealed()).is_success for side in Side)
    return Found(taken > 0, taken)


def _drops_a_site(folder: Path) -> Found:
    """Server B says that it does not hold a site's share, and the round goes on without."""
    honest, awaited = collect.collected, collect.awaited_sites

    def without_the_victim(server: Server, record: RoundRecord) -> CollectedSet:
        held = honest(server, record)
        if server.side is Side.A:
            return held
        return held.model_copy(update={"contributions": tuple(c for c in held.contributions if c.site != VICTIM)})

    def nobody_at_b(server: Server, record: RoundRecord) -> frozenset[str]:
        return awaited(server, record) if server.side is Side.A else frozenset()

    lies = {f"servers.rounds.{module}.awaited_sites": nobody_at_b for module in ("collect", "standing")}
    lies_of_shares = {f"servers.rounds.{module}.collected": without_the_victim for module in ("standing", "side_b")}
    with taken_out({**lies, **lies_of_shares}), pair_in_memory(folder) as pair:
        opened = pair.round(opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        opened.lock()
        left_out = set(SITES) - set(opened.agreed)
    return Found(bool(left_out), len(left_out))


def _letters_that_conflict(folder: Path) -> Found:
    """A letter under a topic that is taken, again and again with other bytes: each is refused, and recorded."""
    length = sealed_small_length(NOTICE_BYTES) // 2
    with pair_in_memory(folder, _EVERYBODY) as pair:
        opened = pair.round()
        path = opened.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
        for number in range(1 + _CONFLICTS):
            opened.client(EARLY).send(Side.A, "PUT", path, number.to_bytes(2, "big") * length)
        kept = len(refusals(pair.federation))
    return Found(kept > _MOST_RECORDED, kept)


def _letters_that_pile_up(folder: Path) -> Found:
    """A requester that writes lists for one round and none for those after it: no later list supersedes the first."""
    with pair_in_memory(folder, _EVERYBODY) as pair:
        for number in range(3):
            opened = pair.round()
            for site in SITES[1:] if number == 0 else ():
                path = opened.path(paths.MAIL, topic=f"weights-{opened.number}", recipient=site)
                opened.sites.me.ok(Side.A, "PUT", path, b"weights")
            opened.finish()
        waiting = len(opened.sites.view(Side.A, VICTIM).mail)
    return Found(waiting > 0, waiting)


def _release_by_distances(folder: Path) -> Found:
    """The release set follows the distances: that is the rule's work, and nobody checks which rule it was."""
    with pair_in_memory(folder) as pair:
        opened = pair.round(opens=Needs.DISTANCES)
        opened.advance(Phase.MEASURED)
        seen = opened.sites.openings(opened.current, {})
        near = sorted(SITES[1:], key=lambda site: seen[site].distance or 0.0)[:3]
        chosen = tuple(site for site in SITES if site in (REQUESTER, *near))
        opened.release(chosen)
        opened.require_sum(chosen)
    return Found(True, len(SITES) - len(chosen))


def _retry_without(folder: Path) -> Found:
    """After both servers have committed to a sum, and again after its tags were found wrong, a smaller release set.

    The difference of what the two would open is one site's update.
    """
    with ServersInMemory(folder, SITES) as servers:
        sites = TaggedSites(servers, tagged_study(servers, SMALL, "retry"))
        try:
            sites.create()
            announcement = sites.announcement(1, listed=SITES[1:])
            sites.announce(announcement)
            draw = np.random.default_rng(5)
            x = {site: small_update(draw, SMALL) for site in SITES}
            vectors = {site: sites.with_tags(x[site], announcement) for site in SITES}
            vectors[VICTIM][-TAG_COORDINATES:][:1] += np.uint64(1)
            sites.contribute_all(announcement, vectors)
            current = sites.measured(1, x[REQUESTER], dict.fromkeys(SITES[1:], GRID))
            sites.release(current)
            views = sites.committed(1)
            again = partial(_taken, sites, current, [site for site in SITES if site != VICTIM])
            taken = again()
            if not taken:
                sites.fail(sites.failed(views))
                taken = again()
        finally:
            sites.close()
    return Found(taken > 0, taken)


def _taken(sites: TaggedSites[ServersInMemory], current: RoundView, fewer: Sequence[str]) -> int:
    """Count the servers that take the smaller set."""
    body, path = sites.release_body(current, fewer), sites.path(paths.RELEASE_SET, round=1, attempt=1)
    return sum(sites.me.send(side, "PUT", path, body).is_success for side in Side)


ATTEMPTS: Final = {
    "sybils-in-a-roster": Attempt(_made_up_sites, {"protocol.messages.control.check_signature": lambda *_: None}),
    "share-of-an-earlier-round": Attempt(_share_again, ANY_HEADER),
    "server-drops-a-site": Attempt(_drops_a_site),
    "letters-that-conflict": Attempt(_letters_that_conflict, {"servers.store.requests.MOST_REFUSALS": 10**6}),
    "letters-that-pile-up": Attempt(_letters_that_pile_up, {"servers.letters._of_rounds_before": lambda *_: []}),
    "release-picked-by-distances": Attempt(_release_by_distances),
    "tags-retry-without-a-site": Attempt(_retry_without, ANY_RELEASE),
}
