"""The first roster: only what both operators and the requester have each compared, signed by all three, or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from client_agent.site import founding
from client_agent.site.enrolment_folder import Joined
from host.files import read_secret
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    MalformedMessage,
    NotListed,
    RosterRefused,
    StorageFull,
    Unavailable,
    WrongRound,
)
from protocol.messages.control import Party, Role, Roster, Signed, require_roster, signature_by
from protocol.roster.enrolment import (
    Answered,
    Founding,
    NamedSite,
    OperatorCard,
    Registrant,
    Standing,
    close_answered,
    dump_card,
    fingerprint_of,
    first_roster,
    open_asked,
)
from protocol.roster.keyfile import PartyKeys, dump_roster, parse_party_keys, parse_roster
from protocol.sharing import Side
from servers.enrolment.desk import Desk
from servers.enrolment.pairing import completed
from servers.enrolment.register import names_in_place
from servers.identity.roster import load_identity
from tests.kit.present import present
from tests.unit.enrolment.cards import operator_card, site_party
from tests.unit.enrolment.enrolling import Operators, full_disk, operators
from tests.unit.parties import party_keys


def roster_at(both: Operators, side: Side) -> Roster:
    path = both.settings[side].roster
    return require_roster(parse_roster(path.read_text(), str(path)))


def proposal(requester: Joined, *parties: Party, roster: Roster | None = None) -> Founding:
    """Propose a roster, by default the one that follows from these sites."""
    roster = roster or first_roster(requester.cards, requester.party.name, parties)
    own = signature_by(requester.party.name, requester.keys.signing, roster)
    sites = tuple(NamedSite(name=one.name, party=one.digest()) for one in parties)
    return Founding(roster=roster.digest(), sites=sites, signatures=(own,))


def signed_by_all(roster: Roster, *keys: PartyKeys) -> Signed[Roster]:
    return Signed[Roster](message=roster, signatures=tuple(signature_by(one.name, one.signing, roster) for one in keys))


def test_a_federation_is_founded_and_everybody_has_the_same_roster(both: Operators) -> None:
    requester, site = both.ready_to_found()
    assert both.look(site).waits_for == tuple(
        f"operator-{side}: the requester to found the federation ('moiety site found')" for side in "ab"
    )
    roster = both.found(requester)
    assert [one.name for one in roster.sites] == ["clinic-1", "requester"]
    assert roster_at(both, Side.A) == roster_at(both, Side.B) == roster
    together = both.look(site)
    assert (together.waits_for, together.roster) == ((), parse_roster(site.roster.read_text(), "there"))
    for side in Side:
        load_identity(completed(both.settings[side]))  # as a server does at its start
        assert names_in_place(both.settings[side]) == ("operator-a", "operator-b", "clinic-1", "requester")


def test_founding_again_gives_the_same_roster(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    assert both.found(requester) == both.found(requester)


def test_what_is_waited_for_is_said_step_by_step(tmp_path: Path) -> None:
    both = operators(tmp_path, paired=False)
    desk = both.desks[Side.A]
    assert len(desk.waits_for()) == 2
    assert "moiety server pair" in desk.waits_for()[0]
    assert "--requester" in desk.waits_for()[1]
    requester = both.join("requester", requester=True)
    assert "moiety server admit requester" in desk.waits_for()[1]
    assert both.look(requester).waits_for[0].startswith("operator-a to admit requester: read the fin")
    both.admit(requester)
    site = both.join("clinic-1")
    both.admit(site)
    both.admit_at(requester, site)
    with pytest.raises(ConfigurationError, match="operator-a has not compared the other operator's card yet"):
        both.found(requester)
    assert not any(both.settings[side].roster.exists() for side in Side)


def test_who_is_not_admitted_everywhere_keeps_everybody_waiting_or_is_left_out(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    late = both.join("clinic-2")
    both.admit(late, Side.A)
    with pytest.raises(WrongRound, match=r"clinic-2: operator b: not admitted there, you: moiety site admit clinic-2"):
        both.found(requester)
    with pytest.raises(ConfigurationError, match="option --without: clinic-9 did not register"):
        both.found(requester, ("clinic-9",))
    with pytest.raises(ConfigurationError, match="the requester is in every roster"):
        both.found(requester, ("requester",))
    with pytest.raises(WrongRound, match="a federation has a site beside the requester"):
        both.found(requester, ("clinic-1", "clinic-2"))
    assert not any(both.settings[side].roster.exists() for side in Side)
    assert late.party not in both.found(requester, ("clinic-2",)).sites
    together = both.look(late)
    assert together.roster is None
    assert not late.roster.exists()
    assert "the requester to add clinic-2 to the roster" in together.waits_for[0]


def test_the_requester_sees_nobody_before_it_is_admitted_itself(both: Operators) -> None:
    requester, site = both.join("requester", requester=True), both.join("clinic-1")
    assert founding.candidates(requester, both.look(requester)) == ()
    with pytest.raises(WrongRound, match="they admit you, the requester, first"):
        both.found(requester)
    with pytest.raises(ConfigurationError, match="'clinic-1': has not registered; or the operators have not admitted"):
        both.admit_at(requester, site)
    both.admit(requester)
    both.admit(site)
    assert founding.candidates(site, both.look(site)) == ()


def test_a_wrong_fingerprint_at_the_requester_admits_nobody(both: Operators) -> None:
    requester, site = both.join("requester", requester=True), both.join("clinic-1")
    both.admit(requester)
    both.admit(site)
    with pytest.raises(ConfigurationError, match="nothing was kept"):
        founding.admit(requester, both.look(requester), "clinic-1", fingerprint_of(requester.party))
    with pytest.raises(WrongRound, match="clinic-1: you: moiety site admit clinic-1"):
        both.found(requester)


def test_a_key_that_one_operator_swaps_is_signed_by_nobody(both: Operators) -> None:
    """A, alone, admits a key of its own under the site's name: the requester sees two cards, and B refuses."""
    requester, site = both.ready_to_found()
    register = both.desks[Side.A].register
    swapped = site_party("clinic-1", 100, seed="of operator a")
    both.swap(Side.A, swapped)
    assert register.registrant("clinic-1") == Registrant(party=swapped, requester=False, admitted=True)
    with pytest.raises(WrongRound, match="clinic-1: the two operators show different public cards: tell both by phone"):
        both.found(requester)
    with pytest.raises(ConfigurationError, match="two operators show different public cards"):
        both.admit_at(requester, site)
    with pytest.raises(RosterRefused, match=r"operator-b admitted 'clinic-1' under another public card.*nobody signs"):
        both.asking(requester, Side.B).sign(proposal(requester, swapped, requester.party))  # the requester colludes
    assert not both.settings[Side.B].roster.exists()


def test_an_operator_signs_nothing_that_it_did_not_admit_or_compare(both: Operators) -> None:
    requester, site = both.ready_to_found()
    parties = (site.party, requester.party)
    roster = first_roster(requester.cards, "requester", parties)
    good, ask = proposal(requester, *parties), both.asking(requester, Side.A)
    with pytest.raises(RosterRefused, match="operator-a has not admitted 'clinic-9'"):
        ask.sign(proposal(requester, *parties, site_party("clinic-9")))
    other = first_roster((requester.cards[0], operator_card(Side.B)), "requester", parties)
    with pytest.raises(RosterRefused, match="makes another roster of the same sites: the operators' cards differ"):
        ask.sign(proposal(requester, *parties, roster=other))
    with pytest.raises(NotListed, match="'clinic-1' is not the admitted requester, who alone founds"):
        both.asking(site, Side.A).sign(proposal(site, *parties))
    with pytest.raises(BadSignature, match="the requester signs the roster before the operators do"):
        ask.sign(good.model_copy(update={"signatures": ()}))
    forged = signature_by("requester", party_keys("other").signing, roster)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (forged,)}))
    a = ask.sign(good)
    assert not a.in_place
    forged_b = signature_by("operator-b", party_keys("operator-b", Role.OPERATOR).signing, roster)
    with pytest.raises(BadSignature):
        ask.sign(good.model_copy(update={"signatures": (*good.signatures, a.signature, forged_b)}))
    assert not both.settings[Side.A].roster.exists()


def test_a_founding_that_broke_off_between_the_servers_is_ended_by_the_next(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    said = "operator-b: no space left for roster"
    with full_disk(both.settings[Side.B].roster), pytest.raises(StorageFull, match=said):
        both.found(requester)
    assert both.settings[Side.A].roster.exists()
    assert not both.settings[Side.B].roster.exists()
    late = both.join("clinic-2")  # changes nothing of what was signed
    both.admit(late)
    roster = both.found(requester)
    assert roster_at(both, Side.A) == roster_at(both, Side.B) == roster
    with pytest.raises(RosterRefused, match="the federation was founded before, with the roster"):
        both.asking(requester, Side.A).sign(proposal(requester, late.party, requester.party))


def test_a_roster_that_cannot_be_written_is_said(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    both.settings[Side.A].data_dir.joinpath("roster.toml").symlink_to("nowhere")
    with pytest.raises(
        ConfigurationError, match=r"operator-a cannot write its roster.*its operator looks at key 'rost"
    ):
        both.found(requester)


def answer_by(both: Operators, side: Side, made: Callable[[Standing], Standing]) -> None:
    """The operator of that side answers standings as ``made`` has them, properly signed."""
    desk = both.desks[side]
    keys = keys_of_folder(both, side)
    ask = desk.answer

    class Lying(Desk):
        def __init__(self) -> None:
            self.card, self.register = desk.card, desk.register

        def answer(self, sealed: bytes) -> bytes:
            asked = open_asked(sealed, keys, desk.card).message
            asker = present(desk.register.registrant(asked.name))
            ask(sealed)
            standing = made(desk._standing(asker))
            return close_answered(Answered(asked=asked.digest(), answer=standing), keys, asker.party)

    both.desks[side] = Lying()


def keys_of_folder(both: Operators, side: Side) -> PartyKeys:
    return parse_party_keys(read_secret(both.settings[side].keys), "keys")


def test_a_site_takes_no_roster_that_the_operators_show_differently(both: Operators) -> None:
    requester, site = both.ready_to_found()
    roster = both.found(requester)
    others = Roster(**(roster.model_dump() | {"sites": (site_party("clinic-9"), *roster.sites)}))
    answer_by(both, Side.B, lambda said: said.model_copy(update={"roster": Signed[Roster](message=others)}))
    with pytest.raises(RosterRefused, match="the two operators show different rosters; neither was taken"):
        both.look(site)
    assert not site.roster.exists()


@pytest.mark.parametrize("what", ["unsigned", "operator", "key"])
def test_a_site_takes_no_roster_that_its_invitations_do_not_promise(both: Operators, what: str) -> None:
    requester, site = both.ready_to_found()
    roster = both.found(requester)
    a, b, r = party_keys("operator-a", Role.OPERATOR), party_keys("operator-b", Role.OPERATOR), requester.keys
    fields = {name: getattr(roster, name) for name in Roster.model_fields}
    if what == "operator":
        urls = (roster.operator_a.url, roster.operator_b.url)
        fields |= {"operator_a": a.party(url=urls[0]), "operator_b": b.party(url=urls[1])}
    elif what == "key":
        fields |= {"sites": (site_party("clinic-1", seed="another"), requester.party)}
        a, b = keys_of_folder(both, Side.A), keys_of_folder(both, Side.B)
    other = Roster(**fields)
    signed = signed_by_all(other) if what == "unsigned" else signed_by_all(other, a, b, r)
    for side in Side:
        answer_by(both, side, lambda said: said.model_copy(update={"roster": signed}))
    said = {"unsigned": "is missing", "operator": "names other operators", "key": "has another public card for 'clin"}
    with pytest.raises((RosterRefused, BadSignature), match=said[what]):
        both.look(site)
    assert not site.roster.exists()


def test_operators_that_are_paired_with_others_than_invited_are_found_out(both: Operators) -> None:
    _, site = both.ready_to_found()
    other: OperatorCard = operator_card(Side.B)
    (both.settings[Side.A].data_dir / "peer.card.toml").write_text(dump_card(other))
    with pytest.raises(RosterRefused, match="operator-a is paired with another card of operator-b than the one that"):
        both.look(site)


def test_a_requester_takes_no_roster_that_it_never_signed(both: Operators) -> None:
    requester, site = both.ready_to_found()
    a, b = keys_of_folder(both, Side.A), keys_of_folder(both, Side.B)
    thief = party_keys("requester", seed="thief")
    roster = first_roster(requester.cards, "requester", (site.party, thief.party(samples=100)))
    both.settings[Side.A].roster.write_text(dump_roster(signed_by_all(roster, a, b, thief)))
    with pytest.raises(RosterRefused, match="a roster in place that this requester never signed"):
        both.found(requester)
    assert not both.settings[Side.B].roster.exists()


def test_a_requester_that_was_withdrawn_founds_nothing(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    both.desks[Side.B].register.withdraw("requester", ())
    with pytest.raises(Unavailable, match="has not registered here"):
        both.found(requester)
    assert not any(both.settings[side].roster.exists() for side in Side)
    both.invite("requester-2", requester=False)
    with pytest.raises(ConfigurationError, match="'requester' has registered as the requester; a federation has one"):
        both.invite("requester-2", requester=True)


def test_a_damaged_list_of_the_requester_is_named(both: Operators) -> None:
    requester, _ = both.ready_to_found()
    (requester.folder / "admitted.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="cannot be read: delete it, and admit everybody once more"):
        both.found(requester)


@pytest.mark.parametrize("comes_back", [True, False])
def test_servers_that_begin_anew_are_waited_for_and_not_without_end(
    both: Operators, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """Nobody answers, 10 seconds at a time, once both have the roster."""
    monkeypatch.setattr("client_agent.site.founding._PAUSE_S", 0.0)
    requester, _ = both.ready_to_found()
    left = 3 if comes_back else 1000

    def send(url: str, path: str, body: bytes, most_bytes: int) -> tuple[int, bytes]:
        nonlocal left
        if both.settings[Side.B].roster.exists() and left:
            left -= 1
            both.clock.now_s += 10.0
            raise Unavailable(f"{url}: nobody listens there")
        return both.send(url, path, body, most_bytes)

    with nullcontext() if comes_back else pytest.raises(Unavailable, match="nobody listens there"):
        founding.found(requester, send, (), both.clock)
    assert both.found(requester) == roster_at(both, Side.A) == roster_at(both, Side.B)


def test_an_operator_that_answers_another_question_is_not_believed(both: Operators) -> None:
    requester, site = both.ready_to_found()
    answer_by(both, Side.A, lambda said: said)
    with pytest.raises(MalformedMessage, match="operator-a answered another question: ask again"):
        both.asking(requester, Side.A).sign(proposal(requester, site.party, requester.party))
