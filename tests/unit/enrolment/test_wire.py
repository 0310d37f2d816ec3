"""Invitations as lines, and questions and answers on their way: sealed, signed, of this minute, for this operator."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import UTC, datetime

import pytest

from protocol.channel.message import pack_frame
from protocol.channel.sealing import seal_small
from protocol.errors import BadSignature, BrokenSeal, ConfigurationError, ErrorCode, MalformedMessage, TooLarge
from protocol.messages.control import Role, Signature, sign
from protocol.roster.enrolment import (
    MOST_SITES,
    PREFIX,
    Answered,
    Asked,
    Founding,
    Invitation,
    NamedSite,
    OperatorCard,
    Refused,
    Registration,
    StandingQuestion,
    close_answered,
    close_asked,
    dump_card,
    fingerprint_of,
    first_roster,
    invitation_id,
    invitation_line,
    open_answered,
    open_asked,
    parse_card,
    read_invitation,
    require_asked_by,
    require_fingerprint,
)
from protocol.sharing import Side
from servers.enrolment.folder import new_ca
from tests.unit.enrolment.cards import operator_card, site_party
from tests.unit.parties import party_keys

# --- wire -------------------------------------------------------------------------------------------------------------

NOW_S = 1_800_000_000
SECRET = "0a" * 32
CARD = operator_card(Side.A)
OPERATOR = party_keys("operator-a", Role.OPERATOR)
SITE = party_keys("clinic-1")
INVITATION = Invitation(
    federation="clinics",
    side=Side.A,
    operator="operator-a",
    url="https://a.example:8443",
    card=CARD.digest(),
    site="clinic-1",
    requester=False,
    expires_at_s=NOW_S,
    secret=SECRET,
)


def asked(**more: object) -> Asked:
    fields = {"federation": "clinics", "to": CARD.digest(), "name": "clinic-1", "at_s": NOW_S}
    return Asked(**({"question": StandingQuestion()} | fields | more))  # type: ignore[arg-type]


def test_an_invitation_survives_a_mail_that_breaks_lines() -> None:
    line = invitation_line(INVITATION)
    assert " " not in line
    assert read_invitation(line) == INVITATION
    broken = "\n  ".join(line[start : start + 60] for start in range(0, len(line), 60))
    assert read_invitation(f" {broken}\n") == INVITATION
    assert read_invitation("\ufeff" + broken.replace(":", "\u200b:\u00a0\u00ad")) == INVITATION


def test_the_secret_is_shown_by_neither_repr_nor_what_is_kept() -> None:
    assert SECRET not in repr(INVITATION)
    assert SECRET not in invitation_id(SECRET)
    assert invitation_id(SECRET) != invitation_id("0b" * 32)


@pytest.mark.parametrize("line", ["", "hello", PREFIX, f"{PREFIX}abc", f"{PREFIX}{'a' * 5000}.00000000"])
def test_what_is_no_invitation_is_named_without_repeating_it(line: str) -> None:
    with pytest.raises(ConfigurationError, match="not an invitation: one is a line that begins with"):
        read_invitation(line)


@pytest.mark.parametrize("place", [30, 200, -9, -1])
def test_an_altered_or_cut_invitation_is_found_out(place: int) -> None:
    line = invitation_line(INVITATION)
    altered = list(line)
    altered[place] = "A" if altered[place] != "A" else "B"
    for wrong in ("".join(altered), line[:place] if place > 0 else line[:-3]):
        with pytest.raises(ConfigurationError, match=r"not as it was made|not an invitation"):
            read_invitation(wrong)


@pytest.mark.parametrize("content", [b"{}", b"\xff", INVITATION.canonical()[:-1]])
def test_an_invitation_of_another_release_is_told_apart(content: bytes) -> None:
    body = base64.urlsafe_b64encode(content).decode().rstrip("=")
    for one in (body, "A"):
        check = hashlib.sha256((PREFIX + one).encode()).hexdigest()[:8]
        with pytest.raises(ConfigurationError, match="of another release"):
            read_invitation(f"{PREFIX}{one}.{check}")


def test_a_question_opens_at_its_operator_alone() -> None:
    question = asked(question=Registration(secret=SECRET, party=site_party("clinic-1")))
    sealed = close_asked(question, SITE, CARD)
    assert SECRET.encode() not in sealed
    assert b"clinic-1" not in sealed
    assert require_asked_by(open_asked(sealed, OPERATOR, CARD), SITE.party(samples=100), NOW_S) == question
    with pytest.raises(BrokenSeal):
        open_asked(sealed, party_keys("operator-b", Role.OPERATOR), CARD)
    with pytest.raises(BrokenSeal):
        open_asked(sealed, OPERATOR, operator_card(Side.B))
    with pytest.raises(BrokenSeal):
        open_asked(sealed[:-1] + bytes([sealed[-1] ^ 1]), OPERATOR, CARD)


def test_questions_of_all_lengths_up_to_a_few_are_alike_on_the_wire() -> None:
    short, long = asked(), asked(question=NAMES)
    assert len(close_asked(short, SITE, CARD)) == len(close_asked(asked(federation="c" * 60), SITE, CARD))
    assert len(close_asked(long, SITE, CARD)) > len(close_asked(short, SITE, CARD))


NAMES = Founding(
    roster="0" * 64,
    sites=tuple(NamedSite(name=f"clinic-{n}", party="0" * 64) for n in range(300)),
    signatures=(Signature(signer="clinic-1", value="0" * 128),),
)


def test_a_question_has_a_bound() -> None:
    many = tuple(NamedSite(name=f"{'c' * 59}{n:03d}", party="0" * 64) for n in range(400))
    sealed = close_asked(asked(question=NAMES.model_copy(update={"sites": many})), SITE, CARD)
    question = open_asked(sealed, OPERATOR, CARD).message.question
    assert isinstance(question, Founding)
    assert len(question.sites) == MOST_SITES
    too_many = NAMES.model_copy(update={"sites": many * 3})
    with pytest.raises(TooLarge, match="at most 131072 are allowed"):
        close_asked(asked(question=too_many), SITE, CARD)


@pytest.mark.parametrize("wrong", [{"to": "0" * 64}, {"federation": "others"}])
def test_a_question_for_another_card_or_federation_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage, match="join with this operator's invitation"):
        open_asked(close_asked(asked(**wrong), SITE, CARD), OPERATOR, CARD)


@pytest.mark.parametrize(
    ("off_s", "said"), [(-600, "600 s behind this server's"), (600, "600 s ahead of this server's"), (6, "6 s ahead")]
)
def test_a_clock_ten_minutes_off_is_said(off_s: int, said: str) -> None:
    signed = sign(asked(at_s=NOW_S + off_s), SITE.name, SITE.signing)
    with pytest.raises(BadSignature, match=f"{said}.*by NTP, and run the same command again"):
        require_asked_by(signed, SITE.party(samples=100), NOW_S)


@pytest.mark.parametrize("off_s", [-60, -1, 0, 5])
def test_a_clock_that_is_a_little_off_is_taken(off_s: int) -> None:
    signed = sign(asked(at_s=NOW_S + off_s), SITE.name, SITE.signing)
    assert require_asked_by(signed, SITE.party(samples=100), NOW_S).at_s == NOW_S + off_s


def test_a_question_signed_by_other_keys_is_refused() -> None:
    with pytest.raises(BadSignature):
        require_asked_by(sign(asked(), SITE.name, party_keys("other").signing), SITE.party(samples=100), NOW_S)


def answered(question: Asked) -> Answered:
    return Answered(asked=question.digest(), answer=Refused(code=ErrorCode.BAD_SIGNATURE, detail="no"))


def test_an_answer_is_the_operators_to_this_very_question() -> None:
    question, other = asked(), asked(at_s=NOW_S + 1)
    sealed = close_answered(answered(question), OPERATOR, SITE.party(samples=100))
    assert open_answered(sealed, SITE, question, CARD) == answered(question)
    with pytest.raises(BrokenSeal):
        open_answered(sealed, SITE, other, CARD)
    with pytest.raises(BrokenSeal):
        open_answered(sealed, party_keys("other"), question, CARD)


def test_an_answer_by_somebody_else_is_refused() -> None:
    question = asked()
    thief = party_keys("operator-a", Role.OPERATOR, seed="other")
    with pytest.raises(BadSignature):
        open_answered(close_answered(answered(question), thief, SITE.party(samples=100)), SITE, question, CARD)
    framed = pack_frame(sign(answered(asked(at_s=1)), OPERATOR.name, OPERATOR.signing))
    sealed = seal_small(framed, SITE.party(samples=1).sealing, f"enrolment answer {question.digest()}".encode())
    with pytest.raises(MalformedMessage, match="answered another question"):
        open_answered(sealed, SITE, question, CARD)


def test_the_first_roster_needs_two_operators_of_one_federation() -> None:
    a, b = operator_card(Side.A), operator_card(Side.B)
    sites = [site_party("clinic-1"), site_party("requester")]
    roster = first_roster((b, a), "requester", sites)
    assert (roster.operator_a, roster.operator_b, roster.sites) == (a.party, b.party, tuple(sites))
    for wrong in ((a, a), (a, operator_card(Side.B, "others"))):
        with pytest.raises(ConfigurationError, match="one operator of side a and one of side b"):
            first_roster(wrong, "requester", sites)
    with pytest.raises(ConfigurationError, match=r"no roster can be made of these sites: .*not among the sites"):
        first_roster((a, b), "nobody", sites)


# --- cards ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def card() -> OperatorCard:
    ca = new_ca("operator-a", "a.example", datetime(2026, 1, 1, tzinfo=UTC)).certificate
    return OperatorCard.parse(json.dumps(operator_card(Side.A).model_dump(mode="json") | {"ca": ca}).encode())


def test_a_card_survives_its_file(card: OperatorCard) -> None:
    assert parse_card(dump_card(card), "there") == card
    assert parse_card(dump_card(operator_card(Side.B)), "there").ca is None


def test_a_site_has_no_operators_card() -> None:
    wrong = operator_card(Side.A).model_dump(mode="json") | {"party": site_party("h").model_dump(mode="json")}
    with pytest.raises(MalformedMessage, match="a card is an operator's"):
        OperatorCard.parse(json.dumps(wrong).encode())


def test_a_file_that_is_no_card_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"x\.toml: not an operator's public card .* sent again"):
        parse_card('name = "a"\n', "x.toml")


def test_a_fingerprint_is_forty_digits_of_everything_in_the_card(card: OperatorCard) -> None:
    shown = fingerprint_of(card)
    assert re.fullmatch(r"([0-9]{5} ){7}[0-9]{5}", shown)
    others = [
        card.model_copy(update=change)
        for change in (
            {"federation": "others"},
            {"side": Side.B},
            {"ca": None},
            {"party": operator_card(Side.B).party},
            {"party": card.party.model_copy(update={"url": "https://c.example"})},
        )
    ]
    assert len({shown, *map(fingerprint_of, others)}) == 6


def test_digits_are_compared_however_they_are_grouped(card: OperatorCard) -> None:
    shown = fingerprint_of(card)
    for read in (shown, shown.replace(" ", ""), shown.replace(" ", "-"), f"  {shown}\n", shown.replace(" ", ", ")):
        require_fingerprint(read, card, "operator-a")


@pytest.mark.parametrize("place", [0, 20, -1])
def test_one_digit_that_differs_is_refused_without_saying_which(card: OperatorCard, place: int) -> None:
    digits = list(fingerprint_of(card))
    digits[place] = "0" if digits[place] != "0" else "1"
    with pytest.raises(ConfigurationError, match="nothing was kept") as refused:
        require_fingerprint("".join(digits), card, "operator-a")
    assert not set(fingerprint_of(card).split()) & set(re.findall("[0-9]{5}", refused.value.detail))


@pytest.mark.parametrize("read", ["", "12345", "x" * 40, "٣" * 40, "1" * 41])
def test_what_is_no_fingerprint_is_told_apart(card: OperatorCard, read: str) -> None:
    with pytest.raises(ConfigurationError, match="40 digits in groups of 5"):
        require_fingerprint(read, card, "operator-a")
