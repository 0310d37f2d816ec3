"""The roster at a site: links are fetched one by one, checked, and kept; a fork changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_agent.network.held_roster import ACCEPTED, HeldRoster
from protocol.errors import MoietyError, RosterRefused, RosterUnknown
from protocol.wire.chain.chain import RosterChain
from protocol.wire.chain.file import dump_chain
from protocol.wire.chain.making import Wanted
from protocol.wire.messages import Announcement, RosterChange, Signed
from tests.unit.wire.rosters import CHAIN, changed, given, joins, renewed_keys

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
    party = renewed.head.party("hospital-2")
    assert party is not None
    assert party.signing_key != renewed.name_of("hospital-2")
