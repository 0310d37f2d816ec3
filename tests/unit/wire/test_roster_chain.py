"""The roster as a chain: what continues it, and that nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import BadSignature, ConfigurationError, MoietyError, RosterRefused, RosterUnknown
from protocol.messages.control import Signed
from protocol.messages.roster import RosterChange
from protocol.roster import chain as chains
from protocol.roster.chain import (
    Given,
    RosterChain,
    Wanted,
    claimed,
    dump_chain,
    dump_given,
    in_words,
    parse_chain,
    parse_given,
    proposed,
    require_chain,
    require_claim,
    require_extension,
    require_same_servers,
    signed_by,
    standing,
)
from tests.unit.parties import REQUESTER, parties, party_keys
from tests.unit.wire.rosters import CHAIN, PARTIES, SIGNERS, changed, given, joins, renewed_keys, signed_change

NEW_A, NEW_B, NEW_R = (renewed_keys(name) for name in SIGNERS)
JOINED = changed(CHAIN, joins(), "hospital-4 joins")
REMOVED = changed(JOINED, Wanted(remove=("hospital-2",)), "hospital-2 left")


def test_a_chain_grows_and_every_link_is_found() -> None:
    renewed = changed(REMOVED, Wanted(given=(given(NEW_A, url="https://new.example:8441"), given(NEW_R))), "new keys")
    counted = REMOVED.head.sites[1].model_copy(update={"samples": 7})
    last = changed(renewed, Wanted(given=(Given(counted),)), "counted", NEW_A, NEW_R)
    assert require_chain(last) is last
    assert [site.name for site in last.head.sites] == ["hospital-0", "hospital-1", "hospital-3", "hospital-4"]
    assert last.head.operator_a.url == "https://new.example:8441"
    assert last.number == 4
    for roster, digest in zip(last.rosters, last.digests, strict=True):
        assert last.roster_of(digest) == roster
    assert len(set(last.digests)) == 5
    assert (last.first_digest, last.head_digest) == (CHAIN.head.digest(), last.digests[-1])
    assert last.up_to(2).digests == REMOVED.digests
    with pytest.raises(RosterUnknown, match="change 2"):
        REMOVED.roster_of(last.head_digest)


def test_who_a_party_is_stays_known_by_the_key_that_it_came_with() -> None:
    renewed = changed(JOINED, Wanted(given=(given(renewed_keys("hospital-4")),)))
    first = party_keys("hospital-4").party().signing_key
    assert renewed.founding_keys["hospital-4"] == first != renewed.head.sites[-1].signing_key
    assert [(party.name, change.message.number) for party, change in REMOVED.removed()] == [("hospital-2", 2)]


def test_words_for_every_kind_of_change() -> None:
    wanted = Wanted(given=(given(NEW_A, url="https://new.example:8441"), given(renewed_keys("hospital-1"), samples=7)))
    said = "\n".join(in_words(JOINED.head, proposed(JOINED, wanted, "r").roster))
    counted = JOINED.head.sites[1].model_copy(update={"samples": 7})
    assert len(in_words(JOINED.head, proposed(JOINED, Wanted(given=(Given(counted),)), "r").roster)) == 1
    assert "operator-a: a new signing key" in said
    assert "operator-a: the address https://new.example:8441" in said
    assert "hospital-1: a new sealing key" in said
    assert "hospital-1: 7 training examples in place of 100" in said
    assert len(said.splitlines()) == 6
    assert "hospital-4 is added" in in_words(CHAIN.head, JOINED.head)[0]
    assert "hospital-2 is removed" in in_words(JOINED.head, REMOVED.head)[0]


# --- what does not continue it ----------------------------------------------------------------------------------------


def altered(change: RosterChange, **fields: Any) -> Signed[RosterChange]:
    return signed_change(change.model_copy(update=fields))


@pytest.mark.parametrize("missing", SIGNERS)
def test_a_change_needs_all_three_signatures_with_the_keys_before_it(missing: str) -> None:
    signed = signed_change(proposed(CHAIN, joins(), "r"))
    kept = tuple(one for one in signed.signatures if one.signer != missing)
    with pytest.raises(BadSignature, match=f"'{missing}' is missing"):
        CHAIN.extended_by(signed.model_copy(update={"signatures": kept}))
    own = {"operator-a": NEW_A, "operator-b": NEW_B, REQUESTER: NEW_R}[missing]
    change = proposed(CHAIN, Wanted(given=(given(own),)), "a new key")
    with pytest.raises(BadSignature):
        CHAIN.extended_by(signed_change(change, {missing: own}))
    after = CHAIN.extended_by(signed_change(change))
    with pytest.raises(BadSignature):
        changed(after, joins())
    assert changed(after, joins(), "r", own).number == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 2},
        {"previous": "0" * 64},
        {"first": "0" * 64},
        {"federation": "another"},
    ],
)
def test_a_change_that_follows_something_else_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RosterRefused, match="does not follow"):
        CHAIN.extended_by(altered(proposed(CHAIN, joins(), "r"), **fields))


def test_a_fork_an_older_chain_and_another_federation_are_refused() -> None:
    fork = changed(CHAIN, joins("hospital-5"))
    with pytest.raises(RosterRefused, match="is a fork: its change 1"):
        require_extension(fork, REMOVED)
    with pytest.raises(RosterRefused, match="is a fork"):
        require_extension(REMOVED, fork)
    with pytest.raises(RosterRefused, match="an older one than change 2"):
        require_extension(JOINED, REMOVED)
    with pytest.raises(RosterRefused, match="another federation's"):
        require_extension(RosterChain(parties(("x-0", "x-1", "x-2")).roster), CHAIN)
    assert require_extension(REMOVED, CHAIN).digests == REMOVED.digests
    assert require_extension(REMOVED, REMOVED).digests == REMOVED.digests
    assert REMOVED.is_extension_of(JOINED)
    assert not REMOVED.is_extension_of(fork)


def test_links_in_another_order_left_out_or_shown_again_are_refused() -> None:
    first, second = REMOVED.changes
    for changes in ((second, first), (second,), (first, first), (first, second, first)):
        with pytest.raises(RosterRefused, match="does not follow"):
            require_chain(RosterChain(CHAIN.first, changes))
    unsigned = CHAIN.first.model_copy(update={"signatures": ()})
    with pytest.raises(BadSignature):
        require_chain(RosterChain(unsigned, REMOVED.changes))


def test_names_and_keys_that_went_never_come_back() -> None:
    with pytest.raises(RosterRefused, match="'hospital-2' was removed and never comes back"):
        proposed(REMOVED, Wanted(given=(given(renewed_keys("hospital-2")),)), "back again")
    old = party_keys("hospital-2")
    thief = type(old)(name="hospital-6", role=old.role, signing=old.signing, sealing=old.sealing)
    with pytest.raises(RosterRefused, match="a key of 'hospital-6' was in the roster before"):
        proposed(REMOVED, Wanted(given=(given(thief),)), "under another name")
    renewed = changed(CHAIN, Wanted(given=(given(renewed_keys("hospital-1")),)))
    with pytest.raises(RosterRefused, match="was in the roster before"):
        proposed(renewed, Wanted(given=(given(party_keys("hospital-1")),)), "the old key again")


def test_only_the_sealing_key_may_be_new_and_is_claimed() -> None:
    old, fresh = party_keys("hospital-1"), renewed_keys("hospital-1")
    mixed = type(old)(name=old.name, role=old.role, signing=old.signing, sealing=fresh.sealing)
    after = changed(CHAIN, Wanted(given=(given(mixed),)))
    assert [claim.signer for claim in after.changes[0].message.claims] == ["hospital-1"]


def test_who_has_new_keys_has_claimed_them() -> None:
    change = proposed(CHAIN, joins(), "r")
    with pytest.raises(RosterRefused, match="needs a claim"):
        CHAIN.extended_by(altered(change, claims=()))
    other = claimed(party_keys("hospital-4"), "0" * 64, samples=100)
    with pytest.raises(BadSignature):
        CHAIN.extended_by(altered(change, claims=(other.claim,)))
    with pytest.raises(BadSignature, match="has not signed with its new keys"):
        proposed(CHAIN, Wanted(given=(Given(party_keys("hospital-4").party(samples=1)),)), "r")
    with pytest.raises(BadSignature):
        require_claim(other, CHAIN.first_digest)


def test_names_order_and_content_stay() -> None:
    change = proposed(CHAIN, joins(), "r")
    head = change.roster
    sites = head.sites
    for roster, words in (
        (CHAIN.head, "changes nothing"),
        (head.model_copy(update={"requester": "hospital-1"}), "keeps the federation's"),
        (head.model_copy(update={"operator_a": head.operator_b, "operator_b": head.operator_a}), "keeps the"),
        (head.model_copy(update={"sites": (sites[1], sites[0], *sites[2:])}), "keep their order"),
        (head.model_copy(update={"sites": (*sites[:3], sites[4], sites[3])}), "keep their order"),
    ):
        with pytest.raises(RosterRefused, match=words):
            CHAIN.extended_by(altered(change, roster=roster))


def test_a_chain_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MOST_CHANGES", 1)
    with pytest.raises(RosterRefused, match="at most 1 changes"):
        proposed(JOINED, Wanted(remove=("hospital-2",)), "r")


# --- proposing and signing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(remove=("nobody",)), "nobody: no site that can be removed"),
        (Wanted(remove=(REQUESTER,)), "no site that can be removed"),
        (Wanted(remove=("operator-a",)), "no site that can be removed"),
        (Wanted(given=(*joins().given, *joins().given)), "given twice"),
        (Wanted(given=(given(renewed_keys("hospital-1")),), remove=("hospital-1",)), "removed and given"),
        (Wanted(given=(Given(party_keys("c").party()),)), "needs role 'site'"),
    ],
)  # fmt: skip
def test_what_no_change_can_do_is_said(wanted: Wanted, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        proposed(CHAIN, wanted, "r")


@pytest.mark.parametrize("reason", ["", "x" * 301, "two\nlines", "a\x1b[2Jtitle"])
def test_a_reason_is_one_readable_line(reason: str) -> None:
    with pytest.raises(ConfigurationError, match="reason"):
        proposed(CHAIN, joins(), reason)


def test_signatures_are_collected_and_shown() -> None:
    signed: Signed[RosterChange] = Signed[RosterChange](message=proposed(CHAIN, joins(), "r"))
    assert set(standing(CHAIN, signed).values()) == {"none"}
    for name in SIGNERS:
        signed = signed_by(CHAIN, signed, PARTIES.keys[name])
    assert set(standing(CHAIN, signed).values()) == {"valid"}
    assert CHAIN.extended_by(signed).head == JOINED.head
    forged = signed_change(signed.message, {"operator-b": NEW_B})
    assert standing(CHAIN, forged)["operator-b"] == "not valid"
    with pytest.raises(ConfigurationError, match="signs no changes"):
        signed_by(CHAIN, signed, PARTIES.keys["hospital-1"])
    with pytest.raises(ConfigurationError, match="not the keys"):
        signed_by(CHAIN, signed, NEW_B)


def test_a_claim_of_what_no_party_is_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hospital-4: key 'samples'"):
        claimed(party_keys("hospital-4"), CHAIN.first_digest, samples=0)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_chain_survives_its_text_and_an_old_file_is_a_chain_of_one_link() -> None:
    renewed = changed(REMOVED, Wanted(given=(given(NEW_A),)), 'Schlüssel \\ "neu" 🔑')
    again = parse_chain(dump_chain(renewed), "roster.toml")
    assert again == renewed
    assert require_chain(again).digests == renewed.digests
    assert parse_chain(dump_chain(CHAIN), "roster.toml") == CHAIN


def test_a_claimed_party_survives_its_text() -> None:
    one = given(party_keys("hospital-4"))
    assert parse_given(dump_given(one, CHAIN.first_digest), "site.toml") == one
    plain = Given(one.party)
    assert parse_given(dump_given(plain, CHAIN.first_digest), "site.toml") == plain
    with pytest.raises(ConfigurationError, match="claim"):
        parse_given(dump_given(plain, CHAIN.first_digest) + 'claim = "00"\n', "site.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("number = 2", "number = 0", "change 0: key 'number'"),
        ('reason = "hospital-2 left"', 'raeson = "x"', "unknown key 'change.1.raeson'"),
        ('removed = ["hospital-2"]', f'removed = ["{REQUESTER}"]', "change 2"),
        ('removed = ["hospital-2"]', 'removed = "hospital-2"', "change.1.removed"),
        ('previous = "', 'previous = "x', "previous"),
    ],
)
def test_a_file_with_something_wrong_is_refused_by_name(old: str, new: str, words: str) -> None:
    text = dump_chain(REMOVED)
    assert old in text
    with pytest.raises(MoietyError, match=words):
        parse_chain(text.replace(old, new), "roster.toml")


def test_a_file_that_was_meddled_with_is_read_and_not_valid() -> None:
    text = dump_chain(REMOVED).replace('removed = ["hospital-2"]', 'removed = ["hospital-3"]')
    with pytest.raises(BadSignature):
        require_chain(parse_chain(text, "roster.toml"))


def test_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.roster.chain.MOST_CHANGES", 1)
    with pytest.raises(ConfigurationError, match="2 changes, at most 1"):
        parse_chain(dump_chain(REMOVED), "roster.toml")
    monkeypatch.setattr("protocol.roster.chain.MOST_CHARACTERS", 1000)
    with pytest.raises(ConfigurationError, match="longer than any roster"):
        parse_chain(dump_chain(CHAIN), "roster.toml")


def test_an_announcement_names_the_head_and_the_first_link_by_leaving_it_out() -> None:
    longer = changed(CHAIN, joins())
    assert (CHAIN.named_head, longer.named_head) == (None, longer.head_digest)
    assert [longer.place_of(link) for link in (None, CHAIN.head_digest, longer.head_digest)] == [0, 0, 1]
    assert longer.roster_under(None) == CHAIN.head
    assert longer.roster_under(longer.head_digest) == longer.head
    with pytest.raises(RosterUnknown, match="is not known here"):
        CHAIN.roster_under(longer.head_digest)


def test_who_was_removed_is_found_in_the_newest_roster_that_had_it() -> None:
    name = CHAIN.head.contributors[0].name
    longer = changed(CHAIN, Wanted(remove=(name,)))
    assert longer.newest_with(name) == CHAIN.head
    assert longer.newest_with(REQUESTER) == longer.head
    assert longer.newest_with("nobody") == longer.head


def test_under_way_only_contributors_change() -> None:
    joined = changed(CHAIN, joins())
    require_same_servers(joined, CHAIN)
    keys = renewed_keys("operator-a")
    renewed = changed(joined, Wanted(given=(given(keys),)))
    with pytest.raises(RosterRefused, match=r"change 2 gives 'operator-a' another key"):
        require_same_servers(renewed, CHAIN)
    require_same_servers(renewed, renewed)
