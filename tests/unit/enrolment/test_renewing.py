"""Sites of the roster get other keys, or are removed: each operator of what its own people said, online."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.joining import adding
from client_agent.joining.asking import Asking
from client_agent.joining.folder import Joined
from client_agent.joining.standing import look
from protocol.errors import ConfigurationError, ConflictingMessage, RosterRefused, Unavailable, WrongRound
from protocol.sharing import Side
from protocol.wire.chain.chain import RosterChain
from protocol.wire.enrolment.invitation import Invitation
from servers.enrolment.place import names_in_place
from tests.unit.enrolment.enrolling import HOUR_S, Operators
from tests.unit.enrolment.test_adding import both, chain_of, founded

__all__ = ["both", "founded"]


def invite_again(both: Operators, site: str) -> tuple[Invitation, Invitation]:
    a, b = (
        both.desks[side].register.invite(both.desks[side].card, site, HOUR_S, requester=False, renews=True)
        for side in Side
    )
    return a, b


def renewing(both: Operators, requester: Joined, site: str, folder: str = "renewed") -> Joined:
    """Joined again with other keys, admitted by all three, and its word given."""
    again = both.joined(invite_again(both, site), folder=folder)
    both.admit(again)
    both.admit_at(requester, again)
    look(again, both.send, both.clock)
    return again


def change(both: Operators, requester: Joined, *names: str) -> RosterChain:
    return adding.add(requester, names, "other keys", both.send, both.clock)


def remove(both: Operators, requester: Joined, *names: str) -> RosterChain:
    return adding.remove(requester, names, "it leaves", both.send, both.clock)


def test_a_site_that_lost_its_keys_gets_others_under_its_name(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    before = chain_of(both, Side.A)
    again = renewing(both, requester, "clinic-1")
    waits = look(again, both.send, both.clock)
    assert waits.chain is None
    assert "put the new keys of clinic-1 into the roster ('moiety site add clinic-1')" in waits.waits_for[0]
    chain = change(both, requester, "clinic-1")
    assert chain.head.party("clinic-1") == again.party
    assert chain.founding_keys == before.founding_keys
    assert chain_of(both, Side.A).digests == chain_of(both, Side.B).digests == chain.digests
    assert look(again, both.send, both.clock).chain is not None
    assert again.roster.exists()
    assert change(both, requester, "clinic-1").digests == chain.digests
    twice = renewing(both, requester, "clinic-1", "once-more")
    assert change(both, requester, "clinic-1").head.party("clinic-1") == twice.party


def test_until_the_change_the_keys_before_count_and_afterwards_they_do_not(
    founded: tuple[Operators, Joined],
) -> None:
    both, requester = founded
    first = both.desks[Side.A].register.registrant("clinic-1")
    assert first is not None
    old = open_first(both)
    again = renewing(both, requester, "clinic-1")
    assert look(old, both.send, both.clock).chain is not None
    change(both, requester, "clinic-1")
    assert both.desks[Side.A].register.registrants[-1].party == again.party
    with pytest.raises(Unavailable, match="did not answer"):
        look(old, both.send, both.clock)


def open_first(both: Operators) -> Joined:
    from client_agent.joining.folder import open_folder

    return open_folder(both.folder / "clinic-1")


def test_other_keys_need_an_invitation_to_renew_and_everybody(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    usual = both.invite("clinic-9")
    with pytest.raises(ConflictingMessage, match="the name 'clinic-1' is taken in this federation"):
        both.joined(tuple(one.model_copy(update={"site": "clinic-1"}) for one in usual), folder="thief")  # type: ignore[arg-type]
    again = both.joined(invite_again(both, "clinic-1"), folder="renewed")
    both.admit(again, Side.A)
    with pytest.raises(WrongRound, match="clinic-1 is not admitted everywhere: operator b: not admitted there"):
        change(both, requester, "clinic-1")
    with pytest.raises(ConflictingMessage, match="is taken here, by another public card"):
        both.joined(invite_again(both, "clinic-1"), folder="another")
    for side in Side:
        withdrawn = both.desks[side].register.withdraw("clinic-1", names_in_place(both.settings[side]))
        assert "1 registrations" in withdrawn
    assert both.desks[Side.A].register.registrant("clinic-1") is not None
    assert chain_of(both, Side.A).number == 0
    renewing(both, requester, "clinic-1", "another-try")
    assert change(both, requester, "clinic-1").number == 1


def test_a_site_is_removed_once_both_operators_let_it_be(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    late = both.join("clinic-2")
    both.admit(late)
    both.admit_at(requester, late)
    look(late, both.send, both.clock)
    adding.add(requester, ["clinic-2"], "joins", both.send, both.clock)
    with pytest.raises(RosterRefused, match="operator-a keeps 'clinic-2': its people run 'moiety server remove"):
        remove(both, requester, "clinic-2")
    both.desks[Side.A].register.let_remove("clinic-2")
    with pytest.raises(RosterRefused, match="operator-b keeps 'clinic-2'"):
        remove(both, requester, "clinic-2")
    both.desks[Side.B].register.let_remove("clinic-2")
    both.desks[Side.B].register.let_remove("clinic-2", undo=True)
    with pytest.raises(RosterRefused, match="operator-b keeps 'clinic-2'"):
        remove(both, requester, "clinic-2")
    both.desks[Side.B].register.let_remove("clinic-2")
    chain = remove(both, requester, "clinic-2")
    assert [site.name for site in chain.head.sites] == ["clinic-1", "requester"]
    assert chain_of(both, Side.A).digests == chain_of(both, Side.B).digests == chain.digests
    assert remove(both, requester, "clinic-2").digests == chain.digests
    assert (
        "was removed from the roster"
        in Asking(late.cards[0], late.keys, late.party, both.send, both.clock).standing().waits_for[0]
    )
    with pytest.raises(RosterRefused, match=r"clinic-2 was removed from the roster by change 2"):
        look(late, both.send, both.clock)
    with pytest.raises(ConfigurationError, match="no site that can be removed"):
        remove(both, requester, "clinic-7")
    with pytest.raises(ConfigurationError, match="no site that can be removed"):
        remove(both, requester, "requester")


def test_a_renewal_that_reached_one_server_alone_is_ended_by_the_next(
    founded: tuple[Operators, Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, requester = founded
    again = renewing(both, requester, "clinic-1")
    with monkeypatch.context() as patched:
        patched.setattr("client_agent.joining.adding._put", first_alone(both))
        with pytest.raises(RosterRefused, match="away"):
            change(both, requester, "clinic-1")
    assert (chain_of(both, Side.A).number, chain_of(both, Side.B).number) == (1, 0)
    assert change(both, requester, "clinic-1").head.party("clinic-1") == again.party
    assert chain_of(both, Side.B).number == 1


def first_alone(both: Operators) -> object:
    honestly = adding._put

    def put(asking: object, before: object, signed: object) -> None:
        if asking.card.side is Side.B:  # type: ignore[attr-defined]
            raise RosterRefused("away")
        honestly(asking, before, signed)  # type: ignore[arg-type]

    return put


def test_the_state_of_before_goes_on(founded: tuple[Operators, Joined], tmp_path: Path) -> None:
    from client_agent.joining.folder import Wanted
    from client_agent.joining.join import join

    both, _ = founded
    wanted = Wanted(100, both.folder / "data", state=tmp_path / "clinic-1" / "state")
    again = join(invite_again(both, "clinic-1"), wanted, both.folder / "renewed", both.send, both.clock)
    assert f'state_dir = "{tmp_path / "clinic-1" / "state"}"' in (again.folder / "settings.toml").read_text()
