"""Messages in their compact form: what their length shows, and that there is one form of each."""

from __future__ import annotations

import json
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict

from client_agent.site.letters import Attestation, Hindrance, StudyRefusal, WeightMail, Welcome
from protocol.channel import encoding
from protocol.channel.encoding import (
    LENGTH_BYTES,
    NAMES,
    pack_message,
    pad,
    shortened,
    unpack_message,
    unpad,
)
from protocol.errors import MalformedMessage, TooLarge
from protocol.messages.control import MAX_CONTROL_BYTES, Decline, Message, Signed
from tests.unit.client_agent.announced_rounds import weights
from tests.unit.client_agent.federation import release

# --- compact ----------------------------------------------------------------------------------------------------------

DIGEST = "0123456789abcdef" * 4


class Letter(Message):
    KIND: ClassVar[str] = "letter"
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    held: Any = None
    site: str = ""


@pytest.mark.parametrize(
    "held",
    [
        [1, 1],
        [2**63 - 1, -(2**63)],
        [0.5, -2.2250738585072014e-308],
        [True, False],
        [None, 7],
    ],
)
def test_no_number_no_switch_and_no_absence_shows(held: list[object]) -> None:
    assert len(pack_message(Letter(held=held))) == len(pack_message(Letter(held=[9, 10])))


def test_a_weight_list_with_its_evidence_takes_two_fifths_and_shows_no_weight() -> None:
    mails = [
        WeightMail(weight_list=weights(few), previous=release(1).model_copy(update={"weight_list": weights(few)}))
        for few in ((1, 9, 0), (10**9, 2**40, 77))
    ]
    first, second = (pack_message(mail) for mail in mails)
    assert len(first) == len(second) < len(mails[0].canonical()) * 2 / 5
    assert [unpack_message(one) for one in (first, second)] == [mail.canonical() for mail in mails]


def test_digests_take_half_and_a_text_that_came_before_three_bytes() -> None:
    once, twice = (pack_message(Letter(held=[DIGEST] * times)) for times in (1, 2))
    assert len(once) == len(pack_message(Letter(held=[]))) + 34
    assert len(twice) == len(once) + 3


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
    | st.binary(max_size=80).map(bytes.hex),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*NAMES[:5], "other", "x" * 255]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values, st.text(max_size=20))
def test_every_message_comes_back_as_its_canonical_bytes(held: object, site: str) -> None:
    message = Letter(held=held, site=site)
    assert unpack_message(pack_message(message)) == message.canonical()


@given(st.binary(max_size=60))
def test_what_can_be_read_is_written_in_one_way(data: bytes) -> None:
    whole = b"\x09\x00\x02" + b"\xff\x04held" + data + bytes([NAMES.index("site")]) + b"\x05\x00\x00"
    try:
        text = unpack_message(whole)
    except MalformedMessage:
        return
    assert pack_message(Letter(**json.loads(text))) == whole


SITE = bytes([NAMES.index("site")])
NO = bytes(9)
TEXT = b"\x05\x00\x01x"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x03\x00", "cut off"),
        (b"\x06", "cut off"),
        (NO + b"\x00", "ends 1 bytes before"),
        (bytes(8) + b"\x01", "followed by something"),
        (b"\x0a", "unknown mark 10"),
        (b"\x04" + b"\x7f\xf0" + bytes(6), "infinite, or none"),
        (b"\x04" + b"\x7f\xf8" + bytes(6), "infinite, or none"),
        (b"\x07\x00\x00", "not in it"),
        (b"\x08\x00\x02" + TEXT + TEXT, "shortest form"),
        (b"\x05\x00\x10" + b"00" * 8, "shortest form"),
        (b"\x06\x07" + bytes(7), "shortest form"),
        (b'\x05\x00\x01"', "as canonical JSON writes it"),
        (b'\x05\x00\x03","', "as canonical JSON writes it"),
        (b"\x05\x00\x02\xc3\xa9", "as canonical JSON writes it"),
        (b"\x05\x00\x06\\u0041", "as canonical JSON writes it"),
        (b"\x05\x00\x01\xff", "as canonical JSON writes it"),
        (b"\x09\x00\x02" + SITE + NO + SITE + NO, "not in order"),
        (b"\x09\x00\x02" + SITE + NO + b"\x00" + NO, "not in order"),
        (b"\x09\x00\x01" + b"\xff\x04site" + NO, "not the short one"),
        (b"\x09\x00\x01" + b"\xff\x01\xff" + NO, "has no name"),
        (b"\x09\x00\x01" + b"\xff\x00" + NO, "has no name"),
        (b"\x09\x00\x01" + bytes([len(NAMES)]) + NO, "has no name"),
        (b"\x08\x00\x01" * 30 + NO, "deeper than 24"),
    ],
)
def test_what_is_written_in_another_way_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        unpack_message(data)


@pytest.mark.parametrize(("text", "times"), [("x" * 65535, 65534), ("\U0001f600" * 5461, 64)])
def test_few_bytes_that_stand_for_many_are_refused_before_they_take_memory(text: str, times: int) -> None:
    """The length in JSON counts: twelve bytes for some characters."""
    spelled = json.dumps(text)[1:-1].encode()
    again = b"\x07\x00\x00" * times
    data = b"\x08" + (times + 1).to_bytes(2, "big") + b"\x05" + len(spelled).to_bytes(2, "big") + spelled + again
    with pytest.raises(TooLarge, match=f"more than {MAX_CONTROL_BYTES} bytes"):
        unpack_message(data)


@pytest.mark.parametrize("held", [2**63, -(2**63) - 1, 10**30])
def test_a_number_wider_than_all_others_is_refused(held: int) -> None:
    with pytest.raises(MalformedMessage, match="at most 63 fit"):
        pack_message(Letter(held=held))


def test_a_longer_text_or_list_than_the_form_holds_is_refused() -> None:
    for held in ("y" * 2**16, [1] * 2**16):
        with pytest.raises(MalformedMessage, match="at most 65535 fit"):
            pack_message(Letter(held=held))


def test_the_short_names_are_different_and_fit_a_byte() -> None:
    assert len(set(NAMES)) == len(NAMES) < encoding._SPELLED


def fields_in(kind: object) -> set[str]:
    """The fields of a message and of all that can be in it."""
    found: set[str] = set()
    if isinstance(kind, type) and issubclass(kind, Message):
        found = set(kind.model_fields)
        return found.union(*(fields_in(field.annotation) for field in kind.model_fields.values()))
    return found.union(*(fields_in(part) for part in get_args(kind)))


def test_every_field_of_a_letter_has_a_short_name() -> None:
    """One that is forgotten is spelled, which costs bytes and is noticed here."""
    letters = (Welcome, WeightMail, Signed[Decline], Signed[StudyRefusal], Signed[Hindrance], Signed[Attestation])
    assert set[str]().union(*(fields_in(one) for one in letters)) == set(NAMES)


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", b"\x00\x00", bytes(range(96))])
def test_padding_comes_off_again(content: bytes) -> None:
    assert unpad(pad(content, LENGTH_BYTES + 96)) == content


def test_content_longer_than_its_kind_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="has 5 bytes, its kind takes 4"):
        pad(b"12345", LENGTH_BYTES + 4)


@pytest.mark.parametrize(
    "padded",
    [
        b"",
        b"\x00\x00",
        (5).to_bytes(4, "big") + b"1234",
        (2**32 - 1).to_bytes(4, "big") + b"1234",
        (2).to_bytes(4, "big") + b"1234",
        (2).to_bytes(4, "big") + b"12\x00\x01",
    ],
)
def test_what_no_padding_leaves_is_refused(padded: bytes) -> None:
    with pytest.raises(MalformedMessage, match="must be zeros"):
        unpad(padded)


@pytest.mark.parametrize("text", ["", "plain", 'a "quoted" text', "\x1b[31mred", "naïve", "𝔽𝔽𝔽𝔽𝔽𝔽𝔽𝔽", "\u202e" * 30])
@pytest.mark.parametrize("most", [2, 3, 10, 40])
def test_a_shortened_text_fits_and_is_the_longest_that_does(text: str, most: int) -> None:
    kept = shortened(text, most)
    assert text.startswith(kept)
    assert len(json.dumps(kept)) <= most
    if kept != text:
        assert len(json.dumps(text[: len(kept) + 1])) > most
