"""A sealed answer says how long it is; a short one leaves in one piece."""

from __future__ import annotations

import pytest
from fastapi.responses import StreamingResponse

from protocol.bodies import output
from protocol.sharing import Side
from protocol.wire.channel.sealing import seal_message
from protocol.wire.messages import OutputHeader, ShareKind
from servers.http.responses import sealed_answer
from tests.sealed_bodies import KEY, SECRET


@pytest.mark.parametrize(("length", "at_once"), [(1000, True), (10_000, False)])
def test_its_length_is_known_before_it_is_sealed(length: int, at_once: bool) -> None:
    header = OutputHeader(
        release_digest="ab" * 32, side=Side.A, share_kind=ShareKind.VECTOR, recipient="cd" * 16, length=length
    )
    answer = sealed_answer(output.seal(header, [bytes(8 * length)], KEY.public, SECRET))
    sent = output.seal(header, [bytes(8 * length)], KEY.public, SECRET).whole()
    assert answer.headers["content-length"] == str(len(sent))
    assert isinstance(answer, StreamingResponse) is not at_once
    if at_once:
        assert len(answer.body) == len(sent)


def test_a_message_of_unknown_length_is_streamed() -> None:
    answer = sealed_answer(seal_message(b"header", [bytes(9)], KEY.public, bytes(32), bytes(32)))
    assert isinstance(answer, StreamingResponse)
    assert "content-length" not in answer.headers
