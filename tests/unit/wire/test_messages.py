"""Control messages: canonical bytes, digests, refusals, signatures, rosters, frames."""

from __future__ import annotations

import gc

import pytest
from pydantic import ValidationError

from protocol.channel.message import pack_frame, unpack_frame
from protocol.errors import BadSignature, ConfigurationError, MalformedMessage, UnknownParty
from protocol.messages import control
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    Announcement,
    LayerShape,
    ListedWeight,
    PauseCause,
    PauseNotice,
    ReadyNotice,
    Receipt,
    Roster,
    RuleName,
    RuleSpec,
    Signature,
    Signed,
    Study,
    StudyState,
    WeightList,
)
from protocol.messages.peer import BatchHeader, History
from protocol.messages.purpose import OutcomeCause
from protocol.roster.keyfile import (
    dump_party,
    dump_party_keys,
    dump_roster,
    parse_party,
    parse_party_keys,
    parse_roster,
)
from protocol.sharing import Side
from tests.unit.parties import REQUESTER, SITES, announcement, parties, party_keys, study

# --- messages ---------------------------------------------------------------------------------------------------------

PARTIES = parties()
ROSTER = PARTIES.roster.message
STUDY = study(ROSTER.digest())


def test_a_message_survives_its_canonical_bytes() -> None:
    assert Study.parse(STUDY.canonical()) == STUDY
    assert Study.parse(STUDY.canonical()).digest() == STUDY.digest()


def test_parse_names_the_field_that_is_wrong_and_never_echoes_the_input() -> None:
    with pytest.raises(MalformedMessage, match="announcement: round") as caught:
        Announcement.parse(announcement("a" * 64).canonical().replace(b'"round":1', b'"round":"SECRET"'))
    assert "SECRET" not in caught.value.detail
    with pytest.raises(MalformedMessage, match="ready: body"):
        ReadyNotice.parse(b"{")
    with pytest.raises(MalformedMessage, match="at most"):
        ReadyNotice.parse(b" " * (MAX_CONTROL_BYTES + 1))


def test_an_announcement_lists_each_site_once_and_enough_of_them() -> None:
    with pytest.raises(ValidationError, match="listed twice"):
        announcement("a" * 64, listed=(SITES[1], SITES[1], SITES[2]))
    with pytest.raises(ValidationError, match="least_contributors is 4"):
        announcement("a" * 64, least_contributors=4)


def test_class_counts_need_a_coordinate_a_class() -> None:
    table = STUDY.model_dump()
    changed = {
        "rule": RuleSpec(name=RuleName.WFEDAVG).model_dump(),
        "model": table["model"] | {"classes": 8},
        "parameters": table["parameters"] | {"dimension": 7},
    }
    with pytest.raises(ValidationError, match="8 class counts in vectors of 7 coordinates"):
        Study.model_validate(table | changed)


def test_a_study_pins_the_dimension_and_refuses_same_round_erosion() -> None:
    table = STUDY.model_dump()
    with pytest.raises(ValidationError, match="the layers hold 6 parameters"):
        Study.model_validate(table | {"parameters": table["parameters"] | {"dimension": 7}})
    with pytest.raises(ValidationError, match="plain simulation only"):
        Study.model_validate(table | {"rule": RuleSpec(name=RuleName.WEIGHT_EROSION, erosion_applies="same_round")})


def test_weight_list_lookup_and_salted_digest() -> None:
    weights = WeightList(
        study_digest="a" * 64, round=1, grid=32, weights=(ListedWeight(site="x", numerator=7),), salt="b" * 64
    )
    assert weights.numerator_of("x") == 7
    assert weights.numerator_of("y") is None
    assert weights.digest() != weights.model_copy(update={"salt": "c" * 64}).digest()
    assert "b" * 64 not in repr(weights)


def test_states_that_end_a_study() -> None:
    assert {s for s in StudyState if not s.ended} == {StudyState.OPEN, StudyState.PAUSED}


# --- rosters -------------------------------------------------------------------------------------------------------


def test_roster_lookups() -> None:
    assert [p.name for p in ROSTER.contributors] == list(SITES[1:])
    assert ROSTER.place(SITES[2]) == 2
    assert ROSTER.operator(Side.A).name == "operator-a"
    assert ROSTER.operator(Side.B).name == "operator-b"
    assert ROSTER.party("nobody") is None


def changed_roster(**changes: object) -> Roster:
    return Roster.model_validate(dict(ROSTER) | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sites": (*ROSTER.sites, ROSTER.sites[0])}, "same name"),
        ({"sites": (*ROSTER.sites, ROSTER.sites[0].model_copy(update={"name": "copy"}))}, "same key"),
        ({"requester": "nobody"}, "not among the sites"),
        ({"operator_a": ROSTER.operator_a.model_copy(update={"url": None})}, "https url"),
        ({"sites": (ROSTER.sites[0].model_copy(update={"samples": None}),)}, "number of training samples"),
    ],
)
def test_an_inconsistent_roster_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        changed_roster(**changes)


def test_a_roster_needs_both_operators_and_the_requester() -> None:
    assert control.require_roster(PARTIES.roster) == ROSTER
    for missing in ("operator-a", "operator-b", REQUESTER):
        kept = tuple(s for s in PARTIES.roster.signatures if s.signer != missing)
        with pytest.raises(BadSignature, match=f"the signature of '{missing}' is missing"):
            control.require_roster(Signed[Roster](message=ROSTER, signatures=kept))


def test_a_signature_over_other_content_or_by_another_party_is_refused() -> None:
    other = changed_roster(federation="other")
    with pytest.raises(BadSignature):
        control.require_roster(Signed[Roster](message=other, signatures=PARTIES.roster.signatures))
    signature = control.signature_by("operator-a", PARTIES.keys["operator-b"].signing, ROSTER)
    with pytest.raises(BadSignature):
        control.check_signature(ROSTER, signature, ROSTER.operator_a)
    with pytest.raises(BadSignature, match="expected 'operator-b'"):
        control.check_signature(ROSTER, signature, ROSTER.operator_b)
    with pytest.raises(UnknownParty):
        control.require_signatures(PARTIES.roster, ROSTER, ["stranger"])


def test_a_signature_does_not_carry_over_to_another_kind_of_message() -> None:
    key = PARTIES.keys[REQUESTER].signing
    ready = ReadyNotice(study_digest="a" * 64, site=REQUESTER)
    signature = control.signature_by(REQUESTER, key, ready)

    class Disguised(ReadyNotice):
        KIND = "disguised"

    disguised = Disguised(study_digest="a" * 64, site=REQUESTER)
    assert disguised.canonical() == ready.canonical()
    assert disguised.digest() != ready.digest()
    control.check_signature(ready, signature, ROSTER.sites[0])
    with pytest.raises(BadSignature):
        control.check_signature(disguised, signature, ROSTER.sites[0])


def test_signing_twice_keeps_one_signature() -> None:
    twice = control.countersign(PARTIES.roster, "operator-a", PARTIES.keys["operator-a"].signing)
    assert sorted(s.signer for s in twice.signatures) == sorted(["operator-a", "operator-b", REQUESTER])


# --- files ---------------------------------------------------------------------------------------------------------


def test_roster_and_key_files_survive_their_text() -> None:
    assert parse_roster(dump_roster(PARTIES.roster), "roster.toml") == PARTIES.roster
    party = ROSTER.sites[1]
    assert parse_party(dump_party(party), "site.toml") == party
    keys = PARTIES.keys[REQUESTER]
    again = parse_party_keys(dump_party_keys(keys), "site.key")
    assert again.party(samples=100) == keys.party(samples=100)
    assert keys.signing.to_bytes().hex() not in repr(keys)


def test_a_broken_secret_key_file_is_refused_without_quoting_it() -> None:
    text = dump_party_keys(party_keys("x"))
    secret = party_keys("x").signing.to_bytes().hex()
    for broken in (text.replace("signing_key", "sining_key"), text.replace(secret, secret[:-2]), text + "extra = 1\n"):
        with pytest.raises(ConfigurationError, match="not a") as caught:
            parse_party_keys(broken, "site.key")
        assert secret[:20] not in str(caught.value)


def test_a_roster_file_with_a_wrong_field_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown key 'federaton'"):
        parse_roster(dump_roster(PARTIES.roster).replace("federation", "federaton"), "roster.toml")
    with pytest.raises(MalformedMessage, match="roster"):
        parse_roster(dump_roster(PARTIES.roster).replace('federation = "test"', 'federation = "Not A Name"'), "r")


def test_a_roster_names_its_requester_and_every_party_once_with_an_address_of_host_and_port() -> None:
    text = dump_roster(PARTIES.roster)
    for wrong, said in (
        (text.replace(f'requester = "{REQUESTER}"', 'requester = "nobody"'), "'nobody' is not among the sites"),
        (text.replace('name = "hospital-2"', 'name = "hospital-1"'), "the same name"),
        (text.replace(ROSTER.operator_a.url or "", "https://me:word@a.example"), "no user or password, no path"),
    ):
        with pytest.raises((ConfigurationError, MalformedMessage), match=said):
            parse_roster(wrong, "roster.toml")


# --- frames and paths ----------------------------------------------------------------------------------------------


def test_a_frame_carries_a_message_and_bytes() -> None:
    header = BatchHeader(session="a" * 64, batch=3, lengths=((4, 1), (1,)))
    message, body = unpack_frame(pack_frame(header, b"rest"), BatchHeader)
    assert (message, bytes(body)) == (header, b"rest")


@pytest.mark.parametrize("frame", [b"", b"\x00\x00", b"\x00\x00\x00\xff{}", b"\xff\xff\xff\xff{}"])
def test_a_short_or_oversized_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="ot_batch"):
        unpack_frame(frame, BatchHeader)


@pytest.mark.parametrize("closes_at_s", [-1, 2**53 + 1, 10**400])
def test_a_closing_time_is_a_time(closes_at_s: int) -> None:
    assert announcement("a" * 64, closes_at_s=2**53).closes_at_s == 2**53
    with pytest.raises(ValidationError, match="closes_at_s"):
        announcement("a" * 64, closes_at_s=closes_at_s)


@pytest.mark.parametrize("shape", [(0,), (-2, -3), (6, -1, -1)])
def test_a_layer_has_at_least_one_coordinate_in_each_direction(shape: tuple[int, ...]) -> None:
    """Two negative entries would multiply to a plausible number of parameters."""
    assert LayerShape(name="bias", shape=()).shape == ()
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        LayerShape(name="weight", shape=shape)


def test_the_class_of_a_signed_kind_is_made_once_though_nobody_holds_it() -> None:
    """Making one anew takes milliseconds, and every contribution signs a receipt."""
    first = id(Signed[Receipt])
    gc.collect()
    assert id(Signed[Receipt]) == first
    assert Signed[Receipt] is not Signed[ReadyNotice]


def test_a_digest_is_taken_once_and_goes_into_no_copy() -> None:
    signature = Signature(signer="site-a", value="0" * 128)
    digest, canonical = signature.digest(), signature.canonical_kept()
    assert signature.digest() is digest
    assert signature.canonical_kept() is canonical
    assert canonical == signature.canonical()
    assert signature == Signature(signer="site-a", value="0" * 128)
    assert hash(signature) == hash(Signature(signer="site-a", value="0" * 128))
    other = signature.model_copy(update={"signer": "site-b"})
    assert other.digest() != digest
    assert other.canonical_kept() == other.canonical() != canonical
    assert signature.model_copy().digest() == digest


# --- causes -----------------------------------------------------------------------------------------------------------


def test_only_the_requesters_own_silence_pauses_a_study() -> None:
    absent = {cause for cause in OutcomeCause if cause.requester_absent}
    assert absent == {
        OutcomeCause.REQUESTER_MISSING,
        OutcomeCause.QUERIES_MISSING,
        OutcomeCause.RELEASE_SET_MISSING,
        OutcomeCause.GO_MISSING,
    }


def test_a_pause_says_why_and_what_resumes_the_study() -> None:
    away = PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=3).reason
    assert away.startswith("3 rounds in a row were skipped")
    silent = PauseNotice(cause=PauseCause.REQUESTER_SILENT, skips=1).reason
    assert silent.startswith("the requester has announced no round for long")
    assert all("next announcement resumes the study" in text for text in (away, silent))
    restored = PauseNotice(cause=PauseCause.SERVER_RESTORED, skips=1).reason
    assert "restored from an older database" in restored
    assert "resumes" not in restored


# --- history ----------------------------------------------------------------------------------------------------------

SIGNED = History(party="operator-a", run="aa" * 32, start=3, began=40, changes=50, restored_at_s=7)


@pytest.mark.parametrize(
    ("changed", "follows"),
    [
        ({}, True),
        ({"changes": 51}, True),
        ({"changes": 49}, False),
        ({"run": "bb" * 32, "start": 4, "began": 50, "changes": 60}, True),
        ({"run": "bb" * 32, "start": 4, "began": 49, "changes": 60}, False),  # grown again since
        ({"run": "bb" * 32, "start": 3, "began": 50, "changes": 50}, True),  # a copy made after the last stop
        ({"run": "bb" * 32, "start": 1, "began": 0, "changes": 0, "restored_at_s": 8}, True),
        ({"run": "bb" * 32, "start": 9, "began": 90, "changes": 90, "restored_at_s": 6}, False),
    ],
)
def test_follows(changed: dict[str, object], follows: bool) -> None:
    assert SIGNED.model_copy(update=changed).follows(SIGNED) is follows


def test_its_place_is_said_for_people() -> None:
    assert SIGNED.place == "start 3, change 50"
