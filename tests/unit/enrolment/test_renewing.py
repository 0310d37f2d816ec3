"""Sites of the roster get other keys, or are removed: each operator of what its own people said, online."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.site import founding
from client_agent.site.enrolment import askings_of, join
from client_agent.site.enrolment_folder import Joined, Wanted, open_folder
from protocol.errors import (
    ConfigurationError,
    ConflictingMessage,
    RosterRefused,
    Unavailable,
    UnknownParty,
    WrongRound,
)
from protocol.messages.control import Party
from protocol.roster.chain import Given, claimed, dump_chain, require_claim
from protocol.roster.enrolment import Invitation
from protocol.sharing import Side
from servers.enrolment.register import Register, names_in_place
from tests.kit.command_line import moiety
from tests.kit.present import present
from tests.unit.enrolment.enrolling import HOUR_S, Operators


def invite_again(both: Operators, site: str) -> tuple[Invitation, Invitation]:
    a, b = (
        both.desks[side].register.invite(both.desks[side].card, site, HOUR_S, requester=False, renews=True)
        for side in Side
    )
    return a, b


def renewing(both: Operators, site: str, folder: str = "renewed") -> Joined:
    """Joined again with other keys, admitted by all three, and its word given."""
    again = both.joined(invite_again(both, site), folder=folder)
    both.admit(again)
    both.admit_at(both.requester, again)
    both.look(again)
    return again


def test_a_site_that_lost_its_keys_gets_others_under_its_name(founded: Operators) -> None:
    before = founded.chain(Side.A)
    again = renewing(founded, "clinic-1")
    waits = founded.look(again)
    assert waits.chain is None
    assert "put the new keys of clinic-1 into the roster ('moiety site add clinic-1')" in waits.waits_for[0]
    chain = founded.add("clinic-1")
    assert chain.head.party("clinic-1") == again.party
    assert chain.founding_keys == before.founding_keys
    assert founded.chain(Side.A).digests == founded.chain(Side.B).digests == chain.digests
    assert founded.look(again).chain is not None
    assert again.roster.exists()
    assert founded.add("clinic-1").digests == chain.digests
    twice = renewing(founded, "clinic-1", "once-more")
    assert founded.add("clinic-1").head.party("clinic-1") == twice.party


def test_until_the_change_the_keys_before_count_and_afterwards_they_do_not(founded: Operators) -> None:
    assert founded.desks[Side.A].register.registrant("clinic-1") is not None
    old = open_first(founded)
    again = renewing(founded, "clinic-1")
    assert founded.look(old).chain is not None
    founded.add("clinic-1")
    assert founded.desks[Side.A].register.registrants[-1].party == again.party
    with pytest.raises(Unavailable, match="did not answer"):
        founded.look(old)


def test_whoever_holds_the_old_keys_cannot_overwrite_the_word_for_the_new_ones(founded: Operators) -> None:
    """The old keys were stolen, which is why they are renewed; until the change they are still answered."""
    thief, again = open_first(founded), renewing(founded, "clinic-1")
    claim = claimed(thief.keys, founded.chain(Side.A).first_digest, samples=thief.party.samples).claim
    for asking in askings_of(thief, founded.send, founded.clock):
        assert asking.standing(claim).waits_for == asking.standing().waits_for
    assert founded.add("clinic-1").head.party("clinic-1") == again.party


def test_a_word_is_kept_for_the_keys_that_it_is_for(founded: Operators) -> None:
    register, thief = founded.desks[Side.A].register, open_first(founded)
    again = renewing(founded, "clinic-1")
    kept = {one.party: one.claim for one in register.known_as("clinic-1")}
    claim = present(claimed(thief.keys, founded.chain(Side.A).first_digest, samples=thief.party.samples).claim)
    register.keep_claim(thief.party, claim)
    assert {one.party: one.claim for one in register.known_as("clinic-1")} == kept | {thief.party: claim}
    assert kept[again.party] not in (None, claim)


@pytest.mark.parametrize("renews", [False, True])
def test_a_word_that_comes_while_its_site_is_withdrawn_is_refused(
    founded: Operators, renews: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the question's first look at the register and what it writes there; it used to wait for ever."""
    name = "clinic-1" if renews else "clinic-2"
    site = founded.joined(invite_again(founded, name), folder="renewed") if renews else founded.join(name)
    founded.admit(site)
    before = founded.desks[Side.A].register.known_as(name)

    def withdrawn(given: Given, first_digest: str) -> Party:
        founded.desks[Side.A].register.withdraw(name, names_in_place(founded.settings[Side.A]))
        return require_claim(given, first_digest)

    monkeypatch.setattr("servers.enrolment.desk.require_claim", withdrawn)
    with pytest.raises(UnknownParty, match=f"'{name}' was withdrawn: ask the operator for another invitation"):
        founded.look(site)
    assert founded.desks[Side.A].register.known_as(name) == tuple(one for one in before if one.party != site.party)


def open_first(both: Operators) -> Joined:
    return open_folder(both.folder / "clinic-1")


def test_other_keys_need_an_invitation_to_renew_and_everybody(founded: Operators) -> None:
    usual = founded.invite("clinic-9")
    with pytest.raises(ConflictingMessage, match="the name 'clinic-1' is taken in this federation"):
        founded.joined(tuple(one.model_copy(update={"site": "clinic-1"}) for one in usual), folder="thief")  # type: ignore[arg-type]
    again = founded.joined(invite_again(founded, "clinic-1"), folder="renewed")
    founded.admit(again, Side.A)
    with pytest.raises(WrongRound, match="clinic-1 is not admitted everywhere: operator b: not admitted there"):
        founded.add("clinic-1")
    with pytest.raises(ConflictingMessage, match="is taken here, by another public card"):
        founded.joined(invite_again(founded, "clinic-1"), folder="another")
    for side in Side:
        withdrawn = founded.desks[side].register.withdraw("clinic-1", names_in_place(founded.settings[side]))
        assert "1 registrations" in withdrawn
    assert founded.desks[Side.A].register.registrant("clinic-1") is not None
    assert founded.chain(Side.A).number == 0
    renewing(founded, "clinic-1", "another-try")
    assert founded.add("clinic-1").number == 1


def test_a_site_is_removed_once_both_operators_let_it_be(founded: Operators) -> None:
    late = founded.late("clinic-2")
    founded.add("clinic-2")
    founded.look(late)
    with pytest.raises(RosterRefused, match="operator-a keeps 'clinic-2': its people run 'moiety server remove"):
        founded.remove("clinic-2")
    founded.desks[Side.A].register.let_remove("clinic-2")
    with pytest.raises(RosterRefused, match="operator-b keeps 'clinic-2'"):
        founded.remove("clinic-2")
    founded.desks[Side.B].register.let_remove("clinic-2")
    founded.desks[Side.B].register.let_remove("clinic-2", undo=True)
    with pytest.raises(RosterRefused, match="operator-b keeps 'clinic-2'"):
        founded.remove("clinic-2")
    founded.desks[Side.B].register.let_remove("clinic-2")
    chain = founded.remove("clinic-2")
    assert [site.name for site in chain.head.sites] == ["clinic-1", "requester"]
    assert founded.chain(Side.A).digests == founded.chain(Side.B).digests == chain.digests
    assert founded.remove("clinic-2").digests == chain.digests
    assert "was removed from the roster" in founded.asking(late, Side.A).standing().waits_for[0]
    with pytest.raises(RosterRefused, match=r"clinic-2 was removed from the roster by change 2 \('it leaves'\)"):
        founded.look(late)
    with pytest.raises(ConfigurationError, match="no site that can be removed"):
        founded.remove("clinic-7")
    with pytest.raises(ConfigurationError, match="no site that can be removed"):
        founded.remove("requester")


def test_a_renewal_that_reached_one_server_alone_is_ended_by_the_next(
    founded: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = renewing(founded, "clinic-1")
    with monkeypatch.context() as patched:
        patched.setattr("client_agent.site.founding._put", first_alone(founded))
        with pytest.raises(RosterRefused, match="away"):
            founded.add("clinic-1")
    assert (founded.chain(Side.A).number, founded.chain(Side.B).number) == (1, 0)
    assert founded.add("clinic-1").head.party("clinic-1") == again.party
    assert founded.chain(Side.B).number == 1


def test_a_renewal_that_was_in_force_just_before_a_crash_ends_all_the_same(
    founded: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = renewing(founded, "clinic-1")

    def crashes(self: Register, parties: object) -> None:
        raise SystemExit("the process ends behind the roster's file and before the register's")

    with monkeypatch.context() as patched:
        patched.setattr(Register, "in_force", crashes)
        with pytest.raises(SystemExit):
            founded.add("clinic-1")
    assert founded.desks[Side.A].register.renewals
    assert founded.add("clinic-1").head.party("clinic-1") == again.party
    require_renewed_once_more(founded)


def test_a_renewal_that_a_file_brought_into_force_ends_all_the_same(founded: Operators) -> None:
    """Applied by hand, or from the other operator's copy: nobody asks the server that takes it."""
    thief, again = open_first(founded), renewing(founded, "clinic-1")
    files = [path for side in Side for path in (founded.register_file(side), founded.settings[side].roster)]
    before = [(path, path.read_bytes()) for path in files]
    chain = founded.add("clinic-1")
    for path, content in before:
        path.write_bytes(content)
    waits = founded.look(again).waits_for
    assert "put the new keys of clinic-1 into the roster" in waits[0]
    for side in Side:
        founded.settings[side].roster.write_text(dump_chain(chain))
    with pytest.raises(UnknownParty, match="or it has other keys now: ask from the folder"):
        founded.look(thief)
    with pytest.raises(Unavailable, match="did not answer"):
        founded.look(thief)
    require_renewed_once_more(founded)


def test_what_is_in_force_is_not_withdrawn(founded: Operators, capsys: pytest.CaptureFixture[str]) -> None:
    again = renewing(founded, "clinic-1")
    kept = founded.register_file(Side.A).read_bytes()
    founded.add("clinic-1")
    founded.register_file(Side.A).write_bytes(kept)
    config = founded.folder / "a" / "settings.toml"
    assert moiety("server", "invite", "clinic-1", "--withdraw", "--config", config) == 0
    assert capsys.readouterr().out == "clinic-1: withdrawn: 1 invitations and 0 registrations\n"
    assert [one.party for one in founded.desks[Side.A].register.known_as("clinic-1")] == [again.party]


def require_renewed_once_more(both: Operators) -> None:
    twice = renewing(both, "clinic-1", "once-more")
    assert both.add("clinic-1").head.party("clinic-1") == twice.party
    for side in Side:
        assert [one.party for one in both.desks[side].register.known_as("clinic-1")] == [twice.party]


def first_alone(both: Operators) -> object:
    honestly = founding._put

    def put(asking: object, before: object, signed: object) -> None:
        if asking.card.side is Side.B:  # type: ignore[attr-defined]
            raise RosterRefused("away")
        honestly(asking, before, signed)  # type: ignore[arg-type]

    return put


def test_the_state_of_before_goes_on(founded: Operators, tmp_path: Path) -> None:
    wanted = Wanted(100, founded.folder / "data", state=tmp_path / "clinic-1" / "state")
    again = join(invite_again(founded, "clinic-1"), wanted, founded.folder / "renewed", founded.send, founded.clock)
    assert f'state_dir = "{tmp_path / "clinic-1" / "state"}"' in (again.folder / "settings.toml").read_text()
