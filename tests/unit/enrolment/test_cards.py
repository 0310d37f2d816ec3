"""An operator's public card as a file, and its fingerprint as it is read over the phone."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from protocol.errors import ConfigurationError, MalformedMessage
from protocol.roster.enrolment import OperatorCard, dump_card, fingerprint_of, parse_card, require_fingerprint
from protocol.sharing import Side
from servers.enrolment.own_ca import new_ca
from tests.unit.enrolment.cards import operator_card, site_party


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
