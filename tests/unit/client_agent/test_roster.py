"""The roster at a site: links that it takes, and forks that it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from client_agent.net.server_client import ServerClient
from client_agent.site.identity import ACCEPTED, HeldRoster
from protocol.errors import (
    BadSignature,
    MalformedMessage,
    MoietyError,
    RosterRefused,
    RosterUnknown,
    Unavailable,
)
from protocol.messages.control import Announcement, RosterChange, Signed, countersign, sign
from protocol.roster.chain import RosterChain, Wanted, dump_chain
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.federation import study
from tests.unit.parties import party_keys
from tests.unit.wire.rosters import CHAIN, PARTIES, changed, given, joins, renewed_keys

JOINED = changed(CHAIN, joins())
LONGER = changed(JOINED, Wanted(remove=("hospital-1",)))
FORK = changed(CHAIN, joins("hospital-9"))


class Shows:
    """A server with a chain."""

    def __init__(self, chain: RosterChain) -> None:
        self._chain = chain
        self.asked: list[int] = []

    def roster_change(self, number: int) -> Signed[RosterChange]:
        self.asked.append(number)
        return self._chain.changes[number - 1]


def catch_up(held: HeldRoster, server: Shows, number: int) -> None:
    held.catch_up(number, cast(Any, server))


def naming(link: str | None) -> Announcement:
    return cast(Announcement, SimpleNamespace(roster_head=link))


def test_links_that_are_missing_are_fetched_and_kept(tmp_path: Path) -> None:
    said: list[int] = []
    held, server = HeldRoster(CHAIN, tmp_path, lambda chain: said.append(chain.number)), Shows(LONGER)
    catch_up(held, server, 2)
    catch_up(held, server, 1)
    assert (server.asked, said) == ([1, 2], [1, 2])
    assert held.head == LONGER.head
    assert (tmp_path / ACCEPTED).read_text() == dump_chain(LONGER)
    assert [held.of(naming(link)) for link in (None, *LONGER.digests[1:])] == list(LONGER.rosters)


def test_a_fork_that_one_server_shows_is_refused_and_a_round_that_names_it_is_not_known(tmp_path: Path) -> None:
    held = HeldRoster(JOINED, tmp_path)
    with pytest.raises(RosterRefused, match="does not follow"):
        catch_up(held, Shows(changed(FORK, Wanted(remove=("hospital-1",)))), 2)
    assert held.chain == JOINED
    assert not (tmp_path / ACCEPTED).exists()
    with pytest.raises(RosterUnknown):
        held.of(naming(FORK.head_digest))


def test_a_link_without_its_signatures_is_refused() -> None:
    held, change = HeldRoster(CHAIN), JOINED.changes[0]
    unsigned = Signed[RosterChange](message=change.message, signatures=change.signatures[:2])
    with pytest.raises(MoietyError):
        catch_up(held, Shows(RosterChain(CHAIN.first, (unsigned,))), 1)
    assert held.chain == CHAIN


def test_a_site_with_new_keys_keeps_its_name_in_memories() -> None:
    keys = renewed_keys("hospital-2")
    renewed = HeldRoster(changed(CHAIN, Wanted(given=(given(keys),))))
    assert renewed.name_of("hospital-2") == HeldRoster(CHAIN).name_of("hospital-2")
    party = present(renewed.head.party("hospital-2"))
    assert party.signing_key != renewed.name_of("hospital-2")


RENEWED = changed(CHAIN, Wanted(given=(given(renewed_keys("operator-a")),)))


def test_operators_keys_change_while_no_study_is_under_way_here() -> None:
    busy, idle = HeldRoster(CHAIN), HeldRoster(CHAIN, undisturbed=lambda: True)
    with pytest.raises(RosterRefused, match="another key"):
        catch_up(busy, Shows(RENEWED), 1)
    catch_up(idle, Shows(RENEWED), 1)
    assert (busy.chain, idle.chain) == (CHAIN, RENEWED)


def test_a_study_of_before_is_signed_with_the_keys_of_one_link() -> None:
    held, roster = HeldRoster(RENEWED), CHAIN.head
    requester = PARTIES.keys[roster.requester]
    for party in (PARTIES.keys["operator-a"], renewed_keys("operator-a")):
        signed = countersign(sign(study(), requester.name, requester.signing), party.name, party.signing)
        assert held.require_signed(signed, Side.A) == study()
    forged = countersign(sign(study(), requester.name, requester.signing), "operator-a", party_keys("x").signing)
    with pytest.raises(BadSignature):
        held.require_signed(forged, Side.A)


def test_a_client_follows_its_operator_to_other_keys() -> None:
    client = ServerClient(
        Side.A, CHAIN.head.operator_a, PARTIES.keys["hospital-1"], httpx.MockTransport(lambda _: httpx.Response(500))
    )
    client.follow(RENEWED.head.operator_a)
    assert client.operator == RENEWED.head.operator_a
    with pytest.raises(MalformedMessage, match="has no url"):
        client.follow(CHAIN.head.sites[0])


def test_who_shows_which_link_is_said_where_one_is_another() -> None:
    held = HeldRoster(JOINED)

    def said(a: Shows, b: Shows) -> str:
        clients = {Side.A: a, Side.B: b}
        for side, client in clients.items():
            client.operator = JOINED.head.operator(side)  # type: ignore[attr-defined]
        return held.fork_shown(cast(Any, clients))

    assert said(Shows(JOINED), Shows(LONGER)) == ""
    found = said(Shows(JOINED), Shows(FORK))
    assert f"operator-a shows {JOINED.head_digest[:16]}; operator-b shows {FORK.head_digest[:16]}" in found
    assert HeldRoster(CHAIN).fork_shown(cast(Any, {Side.A: Away()})) == ""
    assert held.fork_shown(cast(Any, {Side.A: Away()})) == ""


class Away:
    """A server that cannot be asked."""

    def roster_change(self, number: int) -> Signed[RosterChange]:
        raise Unavailable("away")
