"""Envelopes open for one server, caller and nonce alone, and their length says little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.channel.commitment import CheckedHead, head_digest
from protocol.channel.envelope import (
    HEAD_BYTES,
    LENGTH_BYTES,
    Correspondence,
    EnclosedAnswer,
    EnclosedRequest,
    close_answer,
    close_request,
    envelope_bytes,
    envelope_length,
    open_answer,
    open_request,
    padded_length,
)
from protocol.channel.message import pack_frame
from protocol.channel.sealing import seal_small, sealed_small_length
from protocol.channel.signing import DigestField
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, OtherVersion, TooLarge
from protocol.messages.control import MAX_CONTROL_BYTES
from tests.unit.wire.sealed import KEY, OTHER, SEALED, flipped

BETWEEN = Correspondence("a" * 32, "b" * 32, "n" * 24)


def request(**changes: object) -> EnclosedRequest:
    fields: dict[str, object] = {
        "method": "POST",
        "target": "/v1/studies",
        "body_digest": "ab" * 32,
        "digest_field": DigestField.CONTENT,
        "enclosed_bytes": 4,
        "body_bytes": 4,
    }
    return EnclosedRequest.model_validate({**fields, **changes})


def test_what_goes_in_comes_out() -> None:
    envelope = close_request(request(), b"body", KEY.public, BETWEEN)
    length = envelope_length(envelope[:LENGTH_BYTES])
    assert len(envelope) == LENGTH_BYTES + length
    assert open_request(envelope[LENGTH_BYTES:], KEY, BETWEEN) == (request(), b"body")
    answer = close_answer(404, b"no", KEY.public, BETWEEN)
    assert open_answer(answer, KEY, BETWEEN) == (404, b"no")


@pytest.mark.parametrize("field", ["caller", "server", "nonce"])
def test_an_envelope_opens_in_no_other_correspondence(field: str) -> None:
    other = replace(BETWEEN, **{field: "c" * 32})
    with pytest.raises(BrokenSeal):
        open_request(close_request(request(), b"body", KEY.public, BETWEEN)[LENGTH_BYTES:], KEY, other)
    with pytest.raises(BrokenSeal):
        open_answer(close_answer(200, b"", KEY.public, BETWEEN), KEY, other)
    with pytest.raises(BrokenSeal):
        open_answer(close_answer(200, b"", KEY.public, BETWEEN), OTHER, BETWEEN)


def test_a_request_is_no_answer() -> None:
    with pytest.raises(BrokenSeal):
        open_answer(close_request(request(), b"body", KEY.public, BETWEEN)[LENGTH_BYTES:], KEY, BETWEEN)


def test_names_and_small_differences_do_not_show_in_the_length() -> None:
    lengths = {len(close_answer(200, bytes(n), KEY.public, BETWEEN)) for n in range(600, 650)}
    assert len(lengths) == 1
    targets = ("/v1/studies/a/end", "/v1/studies/a-much-longer-name-of-a-study/view?after=100&wait_s=20")
    asked = [close_request(request(target=target, enclosed_bytes=0), b"", KEY.public, BETWEEN) for target in targets]
    assert len(asked[0]) == len(asked[1])


@pytest.mark.parametrize("length", [0, 1, 512, 513, 768, 769, 4096, 65536, 65537, 10**6, 10**7])
def test_padding_costs_at_most_a_half_and_little_where_it_is_long(length: int) -> None:
    padded = padded_length(length)
    assert padded >= length
    assert padded <= max(512, 1.5 * length if length <= 2**16 else length * 17 / 16 + 1)


def test_a_length_beyond_what_is_allowed_is_refused_before_it_is_read() -> None:
    most = envelope_bytes(MAX_CONTROL_BYTES)
    assert envelope_length(most.to_bytes(4, "big")) == most
    with pytest.raises(TooLarge, match="at most"):
        envelope_length((most + 1).to_bytes(4, "big"))
    with pytest.raises(BrokenSeal, match="too short"):
        envelope_length((sealed_small_length(0) - 1).to_bytes(4, "big"))


def test_the_longest_body_fits_its_bound() -> None:
    longest = request(target="/" + "x" * 2000, enclosed_bytes=5000)
    sealed = close_request(longest, bytes(5000), KEY.public, BETWEEN)
    assert envelope_length(sealed[:LENGTH_BYTES], 5000) == len(sealed) - LENGTH_BYTES


def test_a_head_that_takes_too_much_room_is_not_sent() -> None:
    huge = request().model_copy(update={"target": "/" + "x" * HEAD_BYTES})
    with pytest.raises(TooLarge, match="shorter names"):
        close_request(huge, b"", KEY.public, BETWEEN)


def test_an_envelope_that_says_more_than_it_holds_is_malformed() -> None:
    lying = pack_frame(EnclosedAnswer(status=200, body_bytes=100), b"short")
    with pytest.raises(MalformedMessage, match="holds 5"):
        open_answer(seal_small(lying, KEY.public, BETWEEN.info("answer")), KEY, BETWEEN)


def test_an_envelope_of_another_version_names_it() -> None:
    newer = pack_frame(EnclosedAnswer(status=200, body_bytes=0)).replace(b"moiety/2", b"moiety/3")
    with pytest.raises(OtherVersion, match="moiety/3"):
        open_answer(seal_small(newer, KEY.public, BETWEEN.info("answer")), KEY, BETWEEN)


class TestCheckedHead:
    """A sealed message behind the signature of its head alone."""

    HEAD_BYTES = 8 + 4 + 26 + 4 + 1200

    def test_it_hands_on_everything_once_the_head_is_the_signed_one(self) -> None:
        for size in (1, 7, 1000, len(SEALED)):
            head = CheckedHead(head_digest(SEALED[: self.HEAD_BYTES]))
            pieces = [bytes(head.feed(SEALED[at : at + size])) for at in range(0, min(len(SEALED), 3000), size)]
            head.finish()
            assert b"".join(pieces) == SEALED[: size * len(pieces)]

    def test_another_head_is_refused_before_anything_is_handed_on(self) -> None:
        head = CheckedHead(head_digest(SEALED[: self.HEAD_BYTES]))
        with pytest.raises(BadSignature, match="not the one whose head was signed"):
            head.feed(flipped(SEALED, self.HEAD_BYTES - 1))

    def test_what_is_no_sealed_message_is_named(self) -> None:
        with pytest.raises(MalformedMessage, match="does not begin as a sealed message"):
            CheckedHead(bytes(32)).feed(b"not a sealed message at all")

    def test_less_than_a_head_is_refused_in_the_end(self) -> None:
        head = CheckedHead(head_digest(SEALED[: self.HEAD_BYTES]))
        assert head.feed(SEALED[: self.HEAD_BYTES - 1]) == b""
        with pytest.raises(BadSignature, match="cut off"):
            head.finish()
