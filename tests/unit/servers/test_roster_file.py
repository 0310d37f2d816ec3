"""A server's roster: a longer one is taken from its file, everything else changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from host.audit_log import AUDIT, Action, read_audit
from host.output_files import rewrite
from protocol.errors import ConfigurationError, RosterRefused, RosterUnknown
from protocol.messages.control import RosterChange, Signed, StudyState, countersign, sign
from protocol.roster.chain import RosterChain, Wanted, claimed, dump_chain, proposed, signers
from protocol.roster.keyfile import PartyKeys, dump_party_keys
from protocol.sharing import Side
from servers.background.duties import RosterFile, take_chain
from servers.identity.roster import ACCEPTED
from servers.rounds.contributions import announced_under
from servers.server import Server, open_server
from servers.settings import ServerSettings, load_settings
from tests.kit.in_process import opened_server
from tests.kit.present import present
from tests.kit.processes import Federation, prepare_servers
from tests.unit.parties import party_keys

SITES = ("requester", "c1", "c2", "c3")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return prepare_servers(tmp_path, SITES)


@pytest.fixture
def settings(federation: Federation) -> ServerSettings:
    return load_settings(federation.servers[Side.A].config)


@pytest.fixture
def server(federation: Federation) -> Iterator[Server]:
    with opened_server(federation.servers[Side.A].config) as opened:
        yield opened


def longer(federation: Federation, chain: RosterChain, wanted: Wanted) -> RosterChain:
    first, *others = signers(chain.head)
    change: Signed[RosterChange] = sign(
        proposed(chain, wanted, "why"), first, federation.parties.keys_of(first).signing
    )
    for name in others:
        change = countersign(change, name, federation.parties.keys_of(name).signing)
    return chain.extended_by(change)


def joined(federation: Federation, chain: RosterChain, name: str) -> RosterChain:
    return longer(federation, chain, Wanted(given=(claimed(party_keys(name), chain.first_digest, samples=9),)))


def test_a_longer_roster_is_taken_from_the_file_and_kept(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    file, chain = RosterFile(server), joined(federation, server.chain, "c4")
    assert not file.renew()
    rewrite(settings.roster, dump_chain(chain))
    assert file.renew()
    assert server.roster == chain.head
    assert party_keys("c4").key_id in server.verify_keys
    assert not take_chain(server, chain)
    assert (settings.data_dir / ACCEPTED).read_text() == dump_chain(chain)


def test_who_was_removed_is_no_party_any_more(federation: Federation, server: Server) -> None:
    was = server.key_id_of("c1")
    assert take_chain(server, longer(federation, server.chain, Wanted(remove=("c1",))))
    assert was not in server.verify_keys
    assert server.former_keys == {was: "c1"}
    assert server.most_sites == len(SITES)


def test_an_older_file_a_fork_and_no_file_change_nothing(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    first, chain = server.chain, joined(federation, server.chain, "c4")
    take_chain(server, chain)
    file = RosterFile(server)
    for text in (dump_chain(first), dump_chain(joined(federation, first, "c5")), "no roster"):
        rewrite(settings.roster, text)
        assert not file.renew()
        assert server.chain == chain
    settings.roster.unlink()
    assert not file.renew()
    refused = server.metrics.refusals.labels("roster_refused")._value.get()
    assert refused == 2


def test_after_a_restart_the_accepted_roster_counts(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    first, chain = server.chain, joined(federation, server.chain, "c4")
    take_chain(server, chain)
    again = open_server(settings)  # its file has the first roster still
    assert again.chain.head_digest == chain.head_digest
    again.store.close()
    rewrite(settings.roster, dump_chain(joined(federation, first, "c5")))
    with pytest.raises(ConfigurationError, match="is a fork"):
        open_server(settings)
    rewrite(settings.roster, dump_chain(longer(federation, chain, Wanted(remove=("c2",)))))
    newest = open_server(settings)
    assert newest.chain.number == 2
    newest.store.close()


def test_another_first_roster_needs_another_folder(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    head = server.chain.head
    fewer = head.model_copy(update={"sites": head.sites[:-1]})
    signed = sign(fewer, head.operator_a.name, federation.parties.keys_of(head.operator_a.name).signing)
    for name in (head.operator_b.name, head.requester):
        signed = countersign(signed, name, federation.parties.keys_of(name).signing)
    rewrite(settings.roster, dump_chain(RosterChain(signed)))
    with pytest.raises(ConfigurationError, match="give the new federation a data_dir"):
        open_server(settings)


def other_keys(federation: Federation, name: str) -> PartyKeys:
    return replace(party_keys("fresh"), name=name, role=federation.parties.keys_of(name).role)


def renewed(federation: Federation, chain: RosterChain, keys: PartyKeys, url: str | None = None) -> RosterChain:
    """With other keys, or another address, of an operator."""
    party = present(chain.head.party(keys.name))
    given = claimed(keys, chain.first_digest, url=url or party.url)
    return longer(federation, chain, Wanted(given=(given,)))


def test_a_study_under_way_keeps_the_operators_keys(
    federation: Federation, server: Server, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = renewed(federation, server.chain, other_keys(federation, server.peer.name))
    file = RosterFile(server)
    rewrite(settings.roster, dump_chain(chain))
    with monkeypatch.context() as patched:
        under_way = SimpleNamespace(state=StudyState.PAUSED, digest="0" * 64)
        patched.setattr(server.store, "studies", lambda: [under_way])
        with pytest.raises(RosterRefused, match="another key"):
            take_chain(server, chain)
        assert [file.renew(), file.renew()] == [False, False]
        assert server.metrics.refusals.labels("roster_refused")._value.get() == 1
    assert file.renew()  # the study has ended, and the file is the same
    assert server.peer == chain.head.operator_b


def test_own_keys_are_taken_once_their_file_holds_them(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    keys = other_keys(federation, server.name)
    chain, file = renewed(federation, server.chain, keys), RosterFile(server)
    first = settings.keys.read_text()
    rewrite(settings.roster, dump_chain(chain))
    with pytest.raises(RosterRefused, match="put the new ones there"):
        take_chain(server, chain)
    assert not file.renew()
    settings.keys.write_text("no keys")
    with pytest.raises(RosterRefused, match="the roster has other keys of this server, and"):
        take_chain(server, chain)
    settings.keys.write_text(dump_party_keys(keys))
    assert file.renew()
    assert server.keys.key_id == keys.key_id == server.key_id_of(server.name)
    again = open_server(settings)  # the folder and the database are its own still
    assert again.keys.key_id == keys.key_id
    again.store.close()
    again.ckks.close()
    settings.keys.write_text(first)
    with pytest.raises(ConfigurationError, match="with other keys"):
        open_server(settings)


def test_addresses_change_with_a_restart(federation: Federation, server: Server) -> None:
    for name, key in ((server.name, "public_url"), (server.peer.name, "peer_url")):
        chain = renewed(federation, server.chain, other_keys(federation, name), "https://elsewhere.example.org:8443")
        with pytest.raises(RosterRefused, match=f"where this server has key '{key}' = .*: set it and start"):
            take_chain(server, chain)


def test_a_round_runs_under_a_link_that_is_known_and_none_before_the_last_rounds(
    federation: Federation, server: Server
) -> None:
    first = server.chain
    chain = joined(federation, first, "c4")
    with pytest.raises(RosterUnknown):
        announced_under(server.chain, chain.head_digest, None)
    take_chain(server, chain)
    assert announced_under(server.chain, None, None) == first.head
    assert announced_under(server.chain, chain.head_digest, None) == chain.head
    with pytest.raises(RosterRefused, match="a study does not go back"):
        announced_under(server.chain, None, chain.head_digest)


def test_of_several_processes_the_first_one_notes_a_change(
    federation: Federation, server: Server, settings: ServerSettings
) -> None:
    """They share the folder; each goes by the longer chain."""

    def noted() -> int:
        return sum(entry.action is Action.ROSTER for entry in read_audit(settings.data_dir / AUDIT))

    one = joined(federation, server.chain, "c4")
    assert take_chain(server, one)
    assert noted() == 1
    two = joined(federation, one, "c5")
    (settings.data_dir / ACCEPTED).write_text(dump_chain(two))  # another process was here first
    assert take_chain(server, two)
    assert server.roster == two.head
    assert noted() == 1
