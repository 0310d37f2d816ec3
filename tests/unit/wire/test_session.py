"""Requests and answers under a session's keys: whole, of this session, this counter, this direction, or not at all."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from protocol.channel import encoding, session
from protocol.channel.encoding import KEPT, KEPT_BYTES, EarlierAnswers
from protocol.channel.envelope import EnclosedRequest
from protocol.channel.keys import SEALING_KEY_BYTES, generate_sealing_key
from protocol.channel.message import MAX_CONTROL_BYTES
from protocol.channel.session import (
    HEAD_BYTES,
    ID_BYTES,
    LENGTH_BYTES,
    MOST_COUNTER,
    WINDOW,
    CounterWindow,
    SessionAnswer,
    SessionGrant,
    SessionHead,
    SessionKeys,
    SessionOffer,
    accepted,
    granted,
    offered,
    session_keys,
)
from protocol.channel.signing import DigestField
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, TooLarge

CALLER, SERVER, OTHER = "a" * 32, "b" * 32, "c" * 32
NAME = b"n" * ID_BYTES
NOW = 1_800_000_000
BOUND: dict[str, Any] = {"session": NAME, "caller": CALLER, "server": SERVER, "offer_digest": "d" * 64}
KEYS = session_keys(b"o" * 32, b"g" * 32, **BOUND)
ASKED = EnclosedRequest(
    method="PUT",
    target="/v1/studies/s/view?after=3",
    body_digest="ab" * 32,
    digest_field=DigestField.SEALED,
    enclosed_bytes=4,
    body_bytes=9,
)


def closed(counter: int = 7, request: EnclosedRequest = ASKED, enclosed: bytes = b"body") -> tuple[bytes, bytes]:
    made = session.close_request(KEYS, NAME, counter, NOW, request, enclosed)
    return made[:HEAD_BYTES], made[HEAD_BYTES:]


DEFLATED = zlib.compress(b"{}" * 500, wbits=-15)


def sealed_as(content: bytes, counter: int = 7) -> tuple[bytes, bytes]:
    """A request of the site's own with any content."""
    head = SessionHead(NAME, counter, NOW, len(content) + 16).bytes()
    tagged = head + session._tag(KEYS, head)
    return tagged, KEYS.asked.encrypt(session._nonce(counter), content, tagged)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("field", list(DigestField))
def test_a_request_comes_out_as_it_went_in(method: str, field: DigestField) -> None:
    asked = EnclosedRequest.model_validate({**ASKED.model_dump(), "method": method, "digest_field": field})
    tagged, sealed = closed(request=asked)
    session.require_head(KEYS, tagged)
    assert session.read_head(tagged) == SessionHead(NAME, 7, NOW, len(sealed))
    assert session.open_request(KEYS, tagged, sealed) == (asked, b"body", 0)


def test_a_request_without_a_body_says_no_digest_and_may_name_an_answer_that_is_held() -> None:
    nothing = hashlib.sha256(b"").hexdigest()
    asked = ASKED.model_copy(update={"body_bytes": 0, "enclosed_bytes": 0, "body_digest": nothing})
    for back in (1, session.MOST_BACK):
        made = session.close_request(KEYS, NAME, 7, NOW, asked, b"", back)
        assert session.open_request(KEYS, made[:HEAD_BYTES], made[HEAD_BYTES:]) == (asked, b"", back)


@pytest.mark.parametrize("follows", [None, *DigestField])
def test_an_answer_comes_out_as_it_went_in(follows: DigestField | None) -> None:
    head = session.read_head(closed()[0])
    answer = SessionAnswer(200) if follows else SessionAnswer(404, b"not here")
    answer = replace(answer, follows=follows, digest=b"d" * 32 if follows else bytes(32))
    made = session.close_answer(KEYS, head, answer)
    assert session.answer_length(made[:LENGTH_BYTES], 0) == len(made) - LENGTH_BYTES
    assert session.open_answer(KEYS, head, made[LENGTH_BYTES:]) == answer


def test_a_control_message_travels_deflated_where_that_is_shorter() -> None:
    head = session.read_head(closed()[0])
    text = b'{"name":"a site"}' * 100
    for body in (b"{}", text, hashlib.shake_256(b"noise").digest(1000)):
        sent = session.close_answer(KEYS, head, SessionAnswer(200, body, is_text=True))[LENGTH_BYTES:]
        plain = session.close_answer(KEYS, head, SessionAnswer(200, body))[LENGTH_BYTES:]
        assert (len(sent) < len(plain)) is (body == text)
        assert session.open_answer(KEYS, head, sent) == session.open_answer(KEYS, head, plain)


def test_an_answer_is_deflated_against_the_one_that_the_request_names() -> None:
    head = session.read_head(closed()[0])
    drawn = [hashlib.shake_256(bytes([number])).hexdigest(300).encode() for number in range(2)]
    before, now = (b'{"kept":"' + drawn[0] + b'","other":' + str(number).encode() + b"}" for number in range(2))
    alone, against = (
        session.close_answer(KEYS, head, SessionAnswer(200, now, is_text=True, earlier=held))[LENGTH_BYTES:]
        for held in (b"", before)
    )
    assert len(against) == session.LEAST_BYTES + 16 < len(alone) / 2
    assert session.open_answer(KEYS, head, against, earlier=before) == session.open_answer(KEYS, head, alone)
    for wrong in (b"", now, drawn[1]):
        with pytest.raises(MalformedMessage, match="against another answer"):
            session.open_answer(KEYS, head, against, earlier=wrong)
    bomb = session.close_answer(KEYS, head, SessionAnswer(200, bytes(2**20), is_text=True, earlier=before))
    with pytest.raises(TooLarge, match="inflates to more"):
        session.open_answer(KEYS, head, bomb[LENGTH_BYTES:], 2**20 - 1, before)


def test_an_end_holds_the_newest_answers_that_are_neither_short_nor_long() -> None:
    held = EarlierAnswers()
    for counter in range(KEPT + 1):
        held.keep(counter, bytes(KEPT_BYTES))
    held.keep(90, bytes(KEPT_BYTES + 1))
    held.keep(91, bytes(encoding.LEAST_BYTES))
    assert [len(held.of(counter)) for counter in (0, 1, KEPT, 90, 91)] == [0, KEPT_BYTES, KEPT_BYTES, 0, 0]


def test_what_inflates_is_bounded_by_what_may_come() -> None:
    head = session.read_head(closed()[0])
    bomb = session.close_answer(KEYS, head, SessionAnswer(200, bytes(2**20), is_text=True))[LENGTH_BYTES:]
    assert len(session.open_answer(KEYS, head, bomb, 2**20).body) == 2**20
    with pytest.raises(TooLarge, match="inflates to more"):
        session.open_answer(KEYS, head, bomb, 2**20 - 1)


def test_every_bit_of_a_head_counts() -> None:
    tagged, _ = closed()
    for place in range(8 * HEAD_BYTES):
        flipped = bytearray(tagged)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(BadSignature, match="not its owner's"):
            session.require_head(KEYS, bytes(flipped))


def test_what_is_sealed_opens_behind_its_own_head_alone_and_unaltered() -> None:
    tagged, sealed = closed()
    for place in (0, len(sealed) // 2, len(sealed) - 1):
        altered = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        with pytest.raises(BrokenSeal, match="altered on its way"):
            session.open_request(KEYS, tagged, altered)
    with pytest.raises(BrokenSeal, match="altered on its way"):
        session.open_request(KEYS, closed(8)[0], sealed)
    with pytest.raises(BrokenSeal, match="too few"):
        session.open_request(KEYS, tagged, sealed[:15])


def test_an_answer_is_to_one_request() -> None:
    one, other = (session.read_head(closed(counter)[0]) for counter in (7, 8))
    made = session.close_answer(KEYS, one, SessionAnswer(200, b"yes"))[LENGTH_BYTES:]
    for wrong in (other, replace(one, created=NOW + 1), replace(one, sealed_bytes=1), replace(one, session=b"m" * 16)):
        with pytest.raises(BrokenSeal):
            session.open_answer(KEYS, wrong, made)


def test_no_answer_is_a_request_and_no_request_an_answer() -> None:
    tagged, sealed = closed()
    head = session.read_head(tagged)
    with pytest.raises(BrokenSeal):
        session.open_answer(KEYS, head, sealed)
    with pytest.raises(BrokenSeal):
        session.open_request(KEYS, tagged, session.close_answer(KEYS, head, SessionAnswer(200))[LENGTH_BYTES:])


@pytest.mark.parametrize(
    "changed",
    [{"session": b"m" * 16}, {"caller": OTHER}, {"server": OTHER}, {"offer_digest": "e" * 64}],
    ids=["id", "caller", "server", "offer"],
)
def test_keys_are_bound_to_both_parties_the_offer_and_the_id(changed: dict[str, Any]) -> None:
    other = session_keys(b"o" * 32, b"g" * 32, **{**BOUND, **changed})
    assert_other(other)


def test_keys_need_both_secrets() -> None:
    assert_other(session_keys(b"O" * 32, b"g" * 32, **BOUND))
    assert_other(session_keys(b"o" * 32, b"G" * 32, **BOUND))
    with pytest.raises(MalformedMessage, match="a session's secret has 31"):
        session_keys(b"o" * 31, b"g" * 32, **BOUND)
    with pytest.raises(MalformedMessage, match="a session's id has 1"):
        session_keys(b"o" * 32, b"g" * 32, **{**BOUND, "session": b"n"})


def assert_other(keys: SessionKeys) -> None:
    tagged, sealed = closed()
    with pytest.raises(BadSignature):
        session.require_head(keys, tagged)
    with pytest.raises(BrokenSeal):
        session.open_request(keys, tagged, sealed)
    made = session.close_answer(keys, session.read_head(tagged), SessionAnswer(200))[LENGTH_BYTES:]
    with pytest.raises(BrokenSeal):
        session.open_answer(KEYS, session.read_head(tagged), made)


def test_lengths_are_coarse_and_bounded() -> None:
    targets = ["/v1/studies/s", "/v1/studies/" + "s" * 60 + "/view?after=12&wait_s=20"]
    asked = [ASKED.model_copy(update={"target": target, "enclosed_bytes": 0}) for target in targets]
    assert len({len(closed(request=one, enclosed=b"")[1]) for one in asked}) == 1
    huge = SessionHead(NAME, 1, NOW, session.most_sealed_bytes(MAX_CONTROL_BYTES) + 1).bytes()
    with pytest.raises(TooLarge, match="sealed bytes were announced"):
        session.require_head(KEYS, huge + session._tag(KEYS, huge))
    with pytest.raises(TooLarge, match="an answer of"):
        session.answer_length((session.most_sealed_bytes(10) + 1).to_bytes(4, "big"), 10)
    longest = ASKED.model_copy(update={"target": "/" + "t" * 2000, "enclosed_bytes": MAX_CONTROL_BYTES})
    assert len(closed(request=longest, enclosed=bytes(MAX_CONTROL_BYTES))[1]) <= session.most_sealed_bytes(
        MAX_CONTROL_BYTES
    )


def test_a_head_has_one_length() -> None:
    with pytest.raises(MalformedMessage, match="a session request's head has 51"):
        session.read_head(closed()[0][:-1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "shorter"),
        (session._ASKED.pack(3, 0, 1, 0, 0, 0) + b"/", "unknown way"),
        (session._ASKED.pack(0, 3, 1, 0, 0, 0) + b"/", "unknown way"),
        (session._ASKED.pack(0, 0, 2, 0, 0, 0) + b"/", "more than it holds"),
        (session._ASKED.pack(0, 0, 1, 0, 1, 1) + bytes(32) + b"/", "more than it holds"),
        (session._ASKED.pack(0, 0, 1, 0, 0, 1) + bytes(31), "more than it holds"),
        (session._ASKED.pack(0, 0, 1, 0, 0, 0) + b"x", "no address"),
        (session._ASKED.pack(0, 0, 1, 0, 0, 0) + b"\xff", "no address"),
        (session._ASKED.pack(0, 0, 0, 0, 0, 1) + bytes(20), "more than it holds"),
    ],
)
def test_what_a_site_itself_asks_wrongly_is_refused_as_that(content: bytes, words: str) -> None:
    with pytest.raises(MalformedMessage, match=words):
        session.open_request(KEYS, *sealed_as(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "shorter"),
        (session._ANSWERED.pack(200, 0, 1), "more than it holds"),
        (session._ANSWERED.pack(200, 1, 0) + bytes(31), "more than it holds"),
        (session._ANSWERED.pack(200, 6, 0), "more than it holds"),
        (session._ANSWERED.pack(200, 4, 1) + b"\xff", "and is not"),
        (session._ANSWERED.pack(200, 4, len(DEFLATED) - 1) + DEFLATED[:-1], "too soon"),
        (session._ANSWERED.pack(200, 4, len(DEFLATED) + 1) + DEFLATED + b"x", "too late"),
    ],
)
def test_what_a_server_answers_wrongly_is_refused_as_that(content: bytes, words: str) -> None:
    head = session.read_head(closed()[0])
    sealed = KEYS.answered.encrypt(session._nonce(head.counter), content, b"answer\x00" + head.bytes())
    with pytest.raises(MalformedMessage, match=words):
        session.open_answer(KEYS, head, sealed)


def test_a_counter_serves_once_in_any_order_within_the_window() -> None:
    window = CounterWindow()
    for counter in (0, 3, 1, 2, WINDOW + 1, 5, WINDOW):
        window.take(counter)
        with pytest.raises(BadSignature, match="counter came before"):
            window.take(counter)
    for behind in (0, 1, 2):
        with pytest.raises(BadSignature, match="far behind"):
            window.take(behind)
    window.take(MOST_COUNTER)
    for gone in (WINDOW, MOST_COUNTER - WINDOW):
        with pytest.raises(BadSignature):
            window.take(gone)
    window.take(MOST_COUNTER - WINDOW + 1)


def test_a_counter_window_agrees_with_a_set_of_all_that_came() -> None:
    window, came, newest = CounterWindow(), set[int](), -1
    for step, counter in enumerate((17 * n * n + n) % 3000 for n in range(4000)):
        known = counter in came or counter <= newest - WINDOW
        try:
            window.take(counter)
            taken = True
        except BadSignature:
            taken = False
        assert taken is not known, step
        came.add(counter)
        newest = max(newest, counter)


def test_both_ends_of_a_grant_have_the_same_keys() -> None:
    key = generate_sealing_key(b"k" * SEALING_KEY_BYTES)
    offer = offered(b"o" * 32, key)
    grant, theirs = granted(offer, b"g" * 32, NAME, 3600, caller=CALLER, server=SERVER)
    mine = accepted(offer, key, SessionGrant.parse(grant.canonical()), caller=CALLER, server=SERVER)
    made = session.close_request(mine, NAME, 1, NOW, ASKED, b"body")
    session.require_head(theirs, made[:HEAD_BYTES])
    assert session.open_request(theirs, made[:HEAD_BYTES], made[HEAD_BYTES:])[0] == ASKED
    answer = session.close_answer(theirs, session.read_head(made[:HEAD_BYTES]), SessionAnswer(204))
    assert session.open_answer(mine, session.read_head(made[:HEAD_BYTES]), answer[LENGTH_BYTES:]).status == 204


def test_a_grant_opens_for_its_own_offer_key_and_id() -> None:
    key, other = (generate_sealing_key(seed * SEALING_KEY_BYTES) for seed in (b"k", b"l"))
    offer, another = offered(b"o" * 32, key), offered(b"p" * 32, key)
    grant, _ = granted(offer, b"g" * 32, NAME, 3600, caller=CALLER, server=SERVER)
    renamed = grant.model_copy(update={"session": "00" * ID_BYTES})
    for wrong_offer, wrong_key, wrong_grant in product((offer, another), (key, other), (grant, renamed)):
        if (wrong_offer, wrong_key, wrong_grant) != (offer, key, grant):
            with pytest.raises(BrokenSeal):
                accepted(wrong_offer, wrong_key, wrong_grant, caller=CALLER, server=SERVER)


def test_an_offer_whose_key_is_none_is_refused() -> None:
    offer = SessionOffer(secret="00" * 32, key="ff" * 1216)
    with pytest.raises(MalformedMessage, match="sealing public key"):
        granted(offer, b"g" * 32, NAME, 3600, caller=CALLER, server=SERVER)
    assert "00" * 32 not in repr(offer)
