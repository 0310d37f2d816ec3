"""A site that comes later: added by a change that both operators and the requester make and sign, each of its own."""

from __future__ import annotations

import pytest

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
from tests.unit.enrolment.enrolling import Operators, full_disk
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
