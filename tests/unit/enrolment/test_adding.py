"""Changes of the roster, which both operators and the requester make and sign: a site added, renewed, removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.site import enrolment_folder, founding
from client_agent.site.enrolment import askings_of, join
from client_agent.site.enrolment_folder import Joined, open_folder
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    ConflictingMessage,
    MalformedMessage,
    NotListed,
    RosterRefused,
    StorageFull,
    Unavailable,
    UnknownParty,
    WrongRound,
)
from protocol.messages.control import Party, RosterChange, Signature, Signed, signature_by
from protocol.roster.chain import (
    Given,
    RosterChain,
    Wanted,
    claimed,
    dump_chain,
    parse_chain,
    proposed,
    require_chain,
    require_claim,
    signed_by,
)
from protocol.roster.enrolment import Changing, Invitation, NamedSite
from protocol.sharing import Side
from servers.enrolment.pairing import own_card
from servers.enrolment.register import Register, names_in_place
from servers.identity.roster import keep_chain
from tests.kit.command_line import moiety
from tests.kit.present import present
from tests.unit.enrolment.enrolling import HOUR_S, Operators, full_disk
from tests.unit.parties import party_keys


def forks(both: Operators, *names: str) -> list[RosterChain]:
    """Changes of one roster, each of which is made as if the others were not."""
    places = (both.requester.roster, *(both.settings[side].roster for side in Side))
    before, made = {path: path.read_bytes() for path in places}, list[RosterChain]()
    for name in names:
        both.late(name)
    for name in names:
        for path, content in before.items():
            path.write_bytes(content)
        made.append(both.add(name))
    return made


def signed_by_all(both: Operators, held: RosterChain, wanted: Wanted, reason: str) -> RosterChain:
    change = Signed[RosterChange](message=proposed(held, wanted, reason))
    for keys in (both.requester.keys, *(own_card(both.settings[side])[1] for side in Side)):
        change = signed_by(held, change, keys)
    return held.extended_by(change)


def changing(requester: Joined, change: RosterChange, *added: NamedSite, signers: tuple[Signature, ...]) -> Changing:
    return Changing(number=change.number, change=change.digest(), reason=change.reason, sites=added, signatures=signers)


def test_a_later_site_is_added_and_takes_the_whole_chain(founded: Operators) -> None:
    late = founded.late("clinic-2")
    assert "the requester to add clinic-2 to the roster" in founded.look(late).waits_for[0]
    assert not late.roster.exists()
    chain = founded.add("clinic-2")
    assert [site.name for site in chain.head.sites] == ["clinic-1", "requester", "clinic-2"]
    assert founded.chain(Side.A).digests == founded.chain(Side.B).digests == chain.digests
    assert "clinic-2" in names_in_place(founded.settings[Side.A])
    together = founded.look(late)
    assert together.waits_for == ()
    assert require_chain(parse_chain(late.roster.read_text(), "there")).digests == chain.digests
    assert founded.add("clinic-2").digests == chain.digests
    later = [founded.late(name) for name in ("clinic-3", "clinic-4")]
    assert founded.add("clinic-3", "clinic-4").number == 2
    for one in later:
        assert founded.look(one).chain is not None


def test_a_file_that_was_put_back_does_not_make_an_operator_sign_a_fork(founded: Operators) -> None:
    """The running servers took the first change; then somebody restores the roster's file from a backup."""
    backup = {side: founded.settings[side].roster.read_bytes() for side in Side}
    founded.late("clinic-2")
    first = founded.add("clinic-2")
    for side in Side:
        keep_chain(founded.settings[side], first)
        founded.settings[side].roster.write_bytes(backup[side])
    founded.late("clinic-3")
    second = founded.add("clinic-3")
    assert second.digests[:2] == first.digests
    assert founded.chain(Side.A).digests == founded.chain(Side.B).digests == second.digests
    assert {"clinic-2", "clinic-3"} <= set(names_in_place(founded.settings[Side.B]))


def test_a_fork_in_the_file_is_not_what_the_next_change_follows(founded: Operators) -> None:
    fork, accepted = forks(founded, "clinic-3", "clinic-2")
    for side in Side:
        keep_chain(founded.settings[side], accepted)
        founded.settings[side].roster.write_text(dump_chain(fork))
    founded.late("clinic-4")
    assert founded.add("clinic-4").digests[:2] == accepted.digests


def test_a_change_that_reached_one_server_alone_is_ended_by_the_next(founded: Operators) -> None:
    for side in Side:
        name = f"clinic-of-{side.value}"
        late = founded.late(name)
        said = f"operator-{side.value}: no space left for roster"
        with full_disk(founded.settings[side].roster), pytest.raises(StorageFull, match=said):
            founded.add(name)
        assert founded.look(late).chain is None  # one operator alone shows it
        chain = founded.add(name)
        assert founded.chain(Side.A).digests == founded.chain(Side.B).digests == chain.digests
        assert founded.look(late).chain is not None


def test_who_is_not_admitted_everywhere_or_gave_no_word_is_not_added(founded: Operators) -> None:
    with pytest.raises(ConfigurationError, match="'clinic-9' did not register at the operators"):
        founded.add("clinic-9")
    late = founded.join("clinic-2")
    founded.admit(late, Side.A)
    with pytest.raises(WrongRound, match="clinic-2 is not admitted everywhere: operator b: not admitted there"):
        founded.add("clinic-2")
    founded.admit(late)
    founded.admit_at(founded.requester, late)
    with pytest.raises(WrongRound, match="has not given its word for its keys yet: its people run 'moiety site sta"):
        founded.add("clinic-2")
    assert founded.chain(Side.A).number == 0


def test_nothing_is_added_before_the_federation_is_founded(both: Operators) -> None:
    requester, site = both.ready_to_found()
    with pytest.raises(WrongRound, match="not founded yet: 'moiety site found' comes first"):
        both.add("clinic-1")
    early = Changing(
        number=1,
        change="0" * 64,
        reason="early",
        sites=(NamedSite(name="clinic-1", party=site.party.digest()),),
        signatures=(),
    )
    with pytest.raises(WrongRound, match="not founded yet: the requester runs 'moiety site found'"):
        both.asking(requester, Side.A).sign(early)


def test_a_key_that_one_operator_swaps_is_added_by_nobody(founded: Operators) -> None:
    """A and the requester together propose a key of their own under the site's name: B refuses."""
    founded.late("clinic-2")
    thief = party_keys("clinic-2", seed="of operator a")
    chain = founded.chain(Side.A)
    given = claimed(thief, chain.first_digest, samples=100)
    founded.swap(Side.A, given.party, given.claim)
    with pytest.raises(WrongRound, match="the two operators show different public cards"):
        founded.add("clinic-2")
    change = proposed(chain, Wanted(given=(given,)), "mine")
    own = signature_by("requester", founded.requester.keys.signing, change)
    named = NamedSite(name="clinic-2", party=given.party.digest())
    proposal = changing(founded.requester, change, named, signers=(own,))
    assert not founded.asking(founded.requester, Side.A).sign(proposal).in_place
    with pytest.raises(RosterRefused, match="operator-b admitted 'clinic-2' under another public card"):
        founded.asking(founded.requester, Side.B).sign(proposal)


def test_what_is_proposed_is_what_the_operator_makes_itself(founded: Operators) -> None:
    late = founded.late("clinic-2")
    chain, ask = founded.chain(Side.A), founded.asking(founded.requester, Side.A)
    given = claimed(late.keys, chain.first_digest, samples=100)
    change = proposed(chain, Wanted(given=(given,)), "they joined")
    named = NamedSite(name="clinic-2", party=late.party.digest())
    own = signature_by("requester", founded.requester.keys.signing, change)
    good = changing(founded.requester, change, named, signers=(own,))
    with pytest.raises(RosterRefused, match="operator-a makes another change of the same sites; nobody signs"):
        ask.sign(good.model_copy(update={"reason": "another"}))
    with pytest.raises(RosterRefused, match="change 0 is the newest one at operator-a, so 2 cannot follow"):
        ask.sign(good.model_copy(update={"number": 2}))
    with pytest.raises(RosterRefused, match="operator-a has not admitted 'clinic-9'"):
        ask.sign(good.model_copy(update={"sites": (NamedSite(name="clinic-9", party="0" * 64),)}))
    with pytest.raises(BadSignature, match="the requester signs the change before the operators do"):
        ask.sign(good.model_copy(update={"signatures": ()}))
    forged = signature_by("requester", party_keys("other").signing, change)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (forged,)}))
    with pytest.raises(NotListed, match="'clinic-2' is not the requester, who alone proposes changes"):
        founded.asking(late, Side.A).sign(good)
    a = ask.sign(good).signature
    forged_b = signature_by("operator-b", party_keys("other").signing, change)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (own, a, forged_b)}))
    assert founded.chain(Side.A).number == 0


def test_a_sites_word_is_for_its_own_keys(founded: Operators) -> None:
    late = founded.join("clinic-2")
    founded.admit(late)
    other = claimed(party_keys("clinic-2", seed="other"), founded.chain(Side.A).first_digest, samples=100)
    with pytest.raises(BadSignature):
        founded.asking(late, Side.A).standing(other.claim)
    registrant = present(founded.desks[Side.A].register.registrant("clinic-2"))
    assert registrant.claim is None
    assert Given(late.party, None) == Given(registrant.party, registrant.claim)


def test_a_word_before_the_founding_is_not_kept(both: Operators) -> None:
    _, site = both.ready_to_found()
    early = claimed(site.keys, "0" * 64, samples=100)
    assert both.asking(site, Side.A).standing(early.claim).admitted
    registrant = present(both.desks[Side.A].register.registrant("clinic-1"))
    assert registrant.claim is None


def test_a_link_that_is_not_there_is_said(founded: Operators) -> None:
    with pytest.raises(MalformedMessage, match="operator-a does not show change 1 of the roster: ask again"):
        founded.asking(founded.requester, Side.A).change(1)


def test_forked_chains_are_taken_by_nobody(founded: Operators) -> None:
    one, _ = forks(founded, "clinic-2", "clinic-3")
    founded.settings[Side.A].roster.write_text(dump_chain(one))
    with pytest.raises(RosterRefused, match="is a fork: its change 1 is"):
        founded.look(founded.requester)


def removed(both: Operators, name: str) -> RosterChain:
    """A removal by a file that all three signed, in place at both operators."""
    held = parse_chain(both.requester.roster.read_text(), "roster.toml")
    longer = signed_by_all(both, held, Wanted(remove=(name,)), f"{name} leaves")
    for side in Side:
        both.settings[side].roster.write_text(dump_chain(longer))
    return longer


def test_a_change_is_proposed_from_the_newest_roster_which_add_and_status_keep(founded: Operators) -> None:
    """A change of the first roster would be a fork, signed by the requester."""
    founded.late("clinic-2")
    added = founded.add("clinic-2")
    assert parse_chain(founded.requester.roster.read_text(), "") == added
    longer = removed(founded, "clinic-1")
    assert parse_chain(founded.requester.roster.read_text(), "") == added
    founded.look(founded.requester)
    assert parse_chain(founded.requester.roster.read_text(), "") == longer
    for side in Side:  # an operator whose file is older takes nothing back
        founded.settings[side].roster.write_text(dump_chain(added))
    founded.look(founded.requester)
    assert parse_chain(founded.requester.roster.read_text(), "") == longer


def test_a_roster_in_the_folder_that_is_a_fork_is_said(founded: Operators) -> None:
    held = parse_chain(founded.requester.roster.read_text(), "roster.toml")
    founded.late("clinic-2")
    founded.add("clinic-2")
    forked = dump_chain(signed_by_all(founded, held, Wanted(remove=("clinic-1",)), "another"))
    founded.requester.roster.write_text(forked)
    with pytest.raises(RosterRefused, match="fork"):
        founded.look(founded.requester)
    assert founded.requester.roster.read_text() == forked


# --- renewed and removed ----------------------------------------------------------------------------------------------


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
    wanted = enrolment_folder.Wanted(100, founded.folder / "data", state=tmp_path / "clinic-1" / "state")
    again = join(invite_again(founded, "clinic-1"), wanted, founded.folder / "renewed", founded.send, founded.clock)
    assert f'state_dir = "{tmp_path / "clinic-1" / "state"}"' in (again.folder / "settings.toml").read_text()
