"""A site that comes later: added by a change that both operators and the requester make and sign, each of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.site import founding
from client_agent.site.enrolment import look
from client_agent.site.enrolment_folder import Joined
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    MalformedMessage,
    NotListed,
    RosterRefused,
    StorageFull,
    WrongRound,
)
from protocol.messages.control import RosterChange, Signature, Signed, signature_by
from protocol.roster.chain import (
    Given,
    RosterChain,
    Wanted,
    claimed,
    dump_chain,
    parse_chain,
    proposed,
    require_chain,
    signed_by,
)
from protocol.roster.enrolment import Changing, NamedSite
from protocol.sharing import Side
from servers.enrolment.pairing import own_card
from servers.enrolment.register import names_in_place
from servers.identity.roster import keep_chain
from tests.kit.present import present
from tests.unit.enrolment.cards import keys_of
from tests.unit.enrolment.enrolling import Operators


def add(both: Operators, requester: Joined, *names: str) -> RosterChain:
    return founding.add(requester, names, "they joined", both.send, both.clock)


def changing(requester: Joined, change: RosterChange, *added: NamedSite, signers: tuple[Signature, ...]) -> Changing:
    return Changing(number=change.number, change=change.digest(), reason=change.reason, sites=added, signatures=signers)


def test_a_later_site_is_added_and_takes_the_whole_chain(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    late = both.late(requester, "clinic-2")
    assert "the requester to add clinic-2 to the roster" in look(late, both.send, both.clock).waits_for[0]
    assert not late.roster.exists()
    chain = add(both, requester, "clinic-2")
    assert [site.name for site in chain.head.sites] == ["clinic-1", "requester", "clinic-2"]
    assert both.chain(Side.A).digests == both.chain(Side.B).digests == chain.digests
    assert "clinic-2" in names_in_place(both.settings[Side.A])
    together = look(late, both.send, both.clock)
    assert together.waits_for == ()
    assert require_chain(parse_chain(late.roster.read_text(), "there")).digests == chain.digests
    later = [both.late(requester, name) for name in ("clinic-3", "clinic-4")]
    assert add(both, requester, "clinic-3", "clinic-4").number == 2
    for one in later:
        assert look(one, both.send, both.clock).chain is not None


def test_adding_again_changes_nothing(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    both.late(requester, "clinic-2")
    assert add(both, requester, "clinic-2").digests == add(both, requester, "clinic-2").digests
    assert both.chain(Side.A).number == 1


def test_a_file_that_was_put_back_does_not_make_an_operator_sign_a_fork(founded: tuple[Operators, Joined]) -> None:
    """The running servers took the first change; then somebody restores the roster's file from a backup."""
    both, requester = founded
    backup = {side: both.settings[side].roster.read_bytes() for side in Side}
    both.late(requester, "clinic-2")
    first = add(both, requester, "clinic-2")
    for side in Side:
        keep_chain(both.settings[side], first)
        both.settings[side].roster.write_bytes(backup[side])
    both.late(requester, "clinic-3")
    second = add(both, requester, "clinic-3")
    assert second.digests[:2] == first.digests
    assert both.chain(Side.A).digests == both.chain(Side.B).digests == second.digests
    assert {"clinic-2", "clinic-3"} <= set(names_in_place(both.settings[Side.B]))


def test_a_fork_in_the_file_is_not_what_the_next_change_follows(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    empty = {side: both.settings[side].roster.read_bytes() for side in Side}
    at_requester = requester.roster.read_bytes()
    for name in ("clinic-2", "clinic-3"):
        both.late(requester, name)
    fork = dump_chain(add(both, requester, "clinic-3"))
    for side in Side:
        both.settings[side].roster.write_bytes(empty[side])
    requester.roster.write_bytes(at_requester)
    accepted = add(both, requester, "clinic-2")
    for side in Side:
        keep_chain(both.settings[side], accepted)
        both.settings[side].roster.write_text(fork)
    both.late(requester, "clinic-4")
    assert add(both, requester, "clinic-4").digests[:2] == accepted.digests


def test_a_change_that_reached_one_server_alone_is_ended_by_the_next(
    founded: tuple[Operators, Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, requester = founded
    for side in Side:
        name = f"clinic-of-{side.value}"
        late = both.late(requester, name)

        def full(path: Path, data: str, side: Side = side) -> None:
            if path == both.settings[side].roster:
                raise StorageFull(f"no space left for {path.name}: free space on this machine's disk")
            path.write_text(data)

        with monkeypatch.context() as patched:
            patched.setattr("servers.enrolment.register.rewrite", full)
            with pytest.raises(StorageFull, match=f"operator-{side.value}: no space left for roster"):
                add(both, requester, name)
        assert look(late, both.send, both.clock).chain is None  # one operator alone shows it
        chain = add(both, requester, name)
        assert both.chain(Side.A).digests == both.chain(Side.B).digests == chain.digests
        assert look(late, both.send, both.clock).chain is not None


def test_who_is_not_admitted_everywhere_or_gave_no_word_is_not_added(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    with pytest.raises(ConfigurationError, match="'clinic-9' did not register at the operators"):
        add(both, requester, "clinic-9")
    late = both.join("clinic-2")
    both.admit(late, Side.A)
    with pytest.raises(WrongRound, match="clinic-2 is not admitted everywhere: operator b: not admitted there"):
        add(both, requester, "clinic-2")
    both.admit(late)
    both.admit_at(requester, late)
    with pytest.raises(WrongRound, match="has not given its word for its keys yet: its people run 'moiety site sta"):
        add(both, requester, "clinic-2")
    assert both.chain(Side.A).number == 0


def test_nothing_is_added_before_the_federation_is_founded(both: Operators) -> None:
    requester, site = both.ready_to_found()
    with pytest.raises(WrongRound, match="not founded yet: 'moiety site found' comes first"):
        add(both, requester, "clinic-1")
    early = Changing(
        number=1,
        change="0" * 64,
        reason="early",
        sites=(NamedSite(name="clinic-1", party=site.party.digest()),),
        signatures=(),
    )
    with pytest.raises(WrongRound, match="not founded yet: the requester runs 'moiety site found'"):
        both.asking(requester, Side.A).sign(early)


def test_a_key_that_one_operator_swaps_is_added_by_nobody(founded: tuple[Operators, Joined]) -> None:
    """A and the requester together propose a key of their own under the site's name: B refuses."""
    both, requester = founded
    both.late(requester, "clinic-2")
    path = both.settings[Side.A].data_dir / "enrolment.json"
    kept = json.loads(path.read_text())
    thief = keys_of("clinic-2", seed="of operator a")
    chain = both.chain(Side.A)
    given = claimed(thief, chain.first_digest, samples=100)
    for one in kept["registrants"]:
        if one["party"]["name"] == "clinic-2":
            one["party"] = given.party.model_dump(mode="json")
            one["claim"] = present(given.claim).model_dump(mode="json")
    path.write_text(json.dumps(kept))
    with pytest.raises(WrongRound, match="the two operators show different public cards"):
        add(both, requester, "clinic-2")
    change = proposed(chain, Wanted(given=(given,)), "mine")
    own = signature_by("requester", requester.keys.signing, change)
    named = NamedSite(name="clinic-2", party=given.party.digest())
    proposal = changing(requester, change, named, signers=(own,))
    assert not both.asking(requester, Side.A).sign(proposal).in_place
    with pytest.raises(RosterRefused, match="operator-b admitted 'clinic-2' under another public card"):
        both.asking(requester, Side.B).sign(proposal)


def test_what_is_proposed_is_what_the_operator_makes_itself(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    late = both.late(requester, "clinic-2")
    chain, ask = both.chain(Side.A), both.asking(requester, Side.A)
    given = claimed(late.keys, chain.first_digest, samples=100)
    change = proposed(chain, Wanted(given=(given,)), "they joined")
    named = NamedSite(name="clinic-2", party=late.party.digest())
    own = signature_by("requester", requester.keys.signing, change)
    good = changing(requester, change, named, signers=(own,))
    with pytest.raises(RosterRefused, match="operator-a makes another change of the same sites; nobody signs"):
        ask.sign(good.model_copy(update={"reason": "another"}))
    with pytest.raises(RosterRefused, match="change 0 is the newest one at operator-a, so 2 cannot follow"):
        ask.sign(good.model_copy(update={"number": 2}))
    with pytest.raises(RosterRefused, match="operator-a has not admitted 'clinic-9'"):
        ask.sign(good.model_copy(update={"sites": (NamedSite(name="clinic-9", party="0" * 64),)}))
    with pytest.raises(BadSignature, match="the requester signs the change before the operators do"):
        ask.sign(good.model_copy(update={"signatures": ()}))
    forged = signature_by("requester", keys_of("other").signing, change)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (forged,)}))
    with pytest.raises(NotListed, match="'clinic-2' is not the requester, who alone proposes changes"):
        both.asking(late, Side.A).sign(good)
    a = ask.sign(good).signature
    forged_b = signature_by("operator-b", keys_of("other").signing, change)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (own, a, forged_b)}))
    assert both.chain(Side.A).number == 0


def test_a_sites_word_is_for_its_own_keys(founded: tuple[Operators, Joined]) -> None:
    both, _ = founded
    late = both.join("clinic-2")
    both.admit(late)
    other = claimed(keys_of("clinic-2", seed="other"), both.chain(Side.A).first_digest, samples=100)
    with pytest.raises(BadSignature):
        both.asking(late, Side.A).standing(other.claim)
    registrant = present(both.desks[Side.A].register.registrant("clinic-2"))
    assert registrant.claim is None
    assert Given(late.party, None) == Given(registrant.party, registrant.claim)


def test_a_word_before_the_founding_is_not_kept(both: Operators) -> None:
    _, site = both.ready_to_found()
    early = claimed(site.keys, "0" * 64, samples=100)
    assert both.asking(site, Side.A).standing(early.claim).admitted
    registrant = present(both.desks[Side.A].register.registrant("clinic-1"))
    assert registrant.claim is None


def test_a_link_that_is_not_there_is_said(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    with pytest.raises(MalformedMessage, match="operator-a does not show change 1 of the roster: ask again"):
        both.asking(requester, Side.A).change(1)


def test_forked_chains_are_taken_by_nobody(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    first = {side: both.settings[side].roster.read_bytes() for side in Side}
    at_requester = requester.roster.read_bytes()
    for name in ("clinic-2", "clinic-3"):
        both.late(requester, name)
    add(both, requester, "clinic-2")
    of_a = both.settings[Side.A].roster.read_bytes()
    for side in Side:
        both.settings[side].roster.write_bytes(first[side])
    requester.roster.write_bytes(at_requester)
    add(both, requester, "clinic-3")
    both.settings[Side.A].roster.write_bytes(of_a)
    with pytest.raises(RosterRefused, match="is a fork: its change 1 is"):
        look(requester, both.send, both.clock)


def removed(both: Operators, requester: Joined, name: str) -> RosterChain:
    """A removal by a file that all three signed, in place at both operators."""
    held = parse_chain(requester.roster.read_text(), "roster.toml")
    change = Signed[RosterChange](message=proposed(held, Wanted(remove=(name,)), f"{name} leaves"))
    for keys in (requester.keys, *(own_card(both.settings[side])[1] for side in Side)):
        change = signed_by(held, change, keys)
    longer = held.extended_by(change)
    for side in Side:
        both.settings[side].roster.write_text(dump_chain(longer))
    return longer


def test_a_change_is_proposed_from_the_newest_roster_which_add_and_status_keep(
    founded: tuple[Operators, Joined],
) -> None:
    """A change of the first roster would be a fork, signed by the requester."""
    both, requester = founded
    both.late(requester, "clinic-2")
    added = add(both, requester, "clinic-2")
    assert parse_chain(requester.roster.read_text(), "") == added
    longer = removed(both, requester, "clinic-1")
    assert parse_chain(requester.roster.read_text(), "") == added
    look(requester, both.send, both.clock)
    assert parse_chain(requester.roster.read_text(), "") == longer
    for side in Side:  # an operator whose file is older takes nothing back
        both.settings[side].roster.write_text(dump_chain(added))
    look(requester, both.send, both.clock)
    assert parse_chain(requester.roster.read_text(), "") == longer


def test_a_roster_in_the_folder_that_is_a_fork_is_said(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    held = parse_chain(requester.roster.read_text(), "roster.toml")
    both.late(requester, "clinic-2")
    add(both, requester, "clinic-2")
    change = Signed[RosterChange](message=proposed(held, Wanted(remove=("clinic-1",)), "another"))
    for keys in (requester.keys, *(own_card(both.settings[side])[1] for side in Side)):
        change = signed_by(held, change, keys)
    forked = dump_chain(held.extended_by(change))
    requester.roster.write_text(forked)
    with pytest.raises(RosterRefused, match="fork"):
        look(requester, both.send, both.clock)
    assert requester.roster.read_text() == forked


def test_a_removed_site_is_told_so(founded: tuple[Operators, Joined]) -> None:
    both, requester = founded
    late = both.late(requester, "clinic-2")
    add(both, requester, "clinic-2")
    look(late, both.send, both.clock)
    removed(both, requester, "clinic-2")
    with pytest.raises(RosterRefused, match=r"clinic-2 was removed from the roster by change 2 \('clinic-2 leaves'\)"):
        look(late, both.send, both.clock)
