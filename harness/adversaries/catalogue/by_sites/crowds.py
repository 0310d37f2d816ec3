"""Sites that are several or none: made-up ones, an earlier round's share in place of work.

A site is a key of the roster, which both operators and the requester have signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import PARTIES, ROSTER
from harness.adversaries.scripted_rounds import SITES, VICTIM, Pair, Phase
from harness.engine.parties import SiteEntry, make_parties
from harness.federation.memory.servers import ServersInMemory
from protocol.errors import MoietyError
from protocol.parameters import Needs
from protocol.sharing import Side
from protocol.wire import authentic
from protocol.wire.authentic import countersign
from protocol.wire.keyfile import dump_roster, parse_roster
from protocol.wire.messages import ContributionHeader, Roster, Signed

_SYBILS: Final = 5


class MadeUpSites(Attack):
    """One hospital adds sites of its own to the roster and signs it as who it is."""

    name = "sybils-in-a-roster"
    party = Party.SITE
    tries = f"adds {_SYBILS} sites of its own making to the roster, so that it is most of a sum"
    defence = "a roster counts once both operators and the requester have signed it"
    figure = "made-up sites in a roster that was taken"
    without: Mapping[str, object] = {"protocol.wire.authentic.check_signature": passes}

    def attempt(self, folder: Path) -> Found:
        me = ROSTER.contributors[0].name
        entries = [SiteEntry(f"sybil-{number}", 50) for number in range(_SYBILS)]
        made_up = make_parties("sybils", entries[0].name, entries, bytes([7]) * 32).roster.message.sites
        grown = ROSTER.model_copy(update={"sites": (*ROSTER.sites, *made_up)})
        signed = Signed[Roster](message=grown, signatures=PARTIES.roster.signatures)
        path = folder / "roster.toml"
        path.write_text(dump_roster(countersign(signed, me, PARTIES.keys_of(me).signing)))
        try:
            taken = authentic.require_roster(parse_roster(path.read_text(), "roster.toml"))
        except MoietyError as refused:
            return Found(False, 0, refused.detail)
        more = len(taken.sites) - len(ROSTER.sites)
        return Found(more > 0, more)


def _any_header(part: object, raw: bytes) -> ContributionHeader:
    return ContributionHeader.parse(raw)


class Replayed(Attack):
    """The bytes of a share that a server took in one round, sent again in the next."""

    name = "share-of-an-earlier-round"
    party = Party.SITE
    tries = "sends its share of the round before again, in place of an update to the present model"
    defence = "a share is sealed under the header of one round's announcement"
    figure = "servers that took an earlier round's share"
    without: Mapping[str, object] = {"protocol.bodies.contribution.Part.require": _any_header}

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            try:
                before = pair.round(opens=Needs.NOTHING)
                before.finish()
                opened = pair.round(opens=Needs.NOTHING)
                opened.advance(Phase.COLLECTING)
                old = before.honest[VICTIM]
                taken = sum(opened.put(VICTIM, side, old[side].sealed()).is_success for side in Side)
            finally:
                pair.close()
        return Found(taken > 0, taken)


def crowds() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return MadeUpSites(), Replayed()
