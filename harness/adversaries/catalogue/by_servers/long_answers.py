"""A server that signs its answers' heads, and sends bodies without an end: what an agent takes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx

from client_agent.network.answer import Answer, UnsignedAnswer
from client_agent.network.server_client import RetryPolicy, ServerClient
from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.scripted_agents import PARTIES, REQUESTER, ROSTER, SITES
from protocol.sharing import Side
from protocol.wire.channel.answers import sign_answer
from protocol.wire.channel.envelope import SEALED_TYPE
from protocol.wire.channel.signing import DigestField

_MEGABYTE: Final = 2**20
_SENT: Final = 32
"""Megabytes of each answer; a real one would go on."""
_FEW: Final = 2
_STUDY: Final = "scripted"


class _Endless(httpx.SyncByteStream):
    """Counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < _SENT:
            self.taken += 1
            yield bytes(_MEGABYTE)


def _unbounded(answer: Answer, most_bytes: int) -> Iterator[bytes]:
    stream = answer._response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    yield from stream


Question = Callable[[ServerClient, Path], object]
_QUESTIONS: Final[tuple[Question, ...]] = (
    lambda client, folder: client.get_mail(_STUDY, "refusal", REQUESTER, SITES[0], 2**19),
    lambda client, folder: client.fetch_mail(_STUDY, "checkpoint-0", "every-site", REQUESTER, folder / "model", 4000),
    lambda client, folder: client.opening(_STUDY, 1, 1, 9000),
    lambda client, folder: client.fetch_output(_STUDY, 1, list, 7000),
)


class WithoutEnd(Attack):
    """A letter, a model, an opening and a sum, each with a signed head and a body without an end."""

    name = "answers-without-end"
    party = Party.SERVER
    tries = "signs the heads of its answers and sends bodies without an end, to fill an agent's memory or disk"
    defence = "every reader says how long the answer can be, and takes no byte more"
    figure = "megabytes of one answer that an agent took"
    without: Mapping[str, object] = {"client_agent.network.answer.Answer._raw": _unbounded}

    def attempt(self, folder: Path) -> Found:
        bodies: list[_Endless] = []
        server = PARTIES.keys_of(ROSTER.operator_a.name)

        def answer(request: httpx.Request) -> httpx.Response:
            bodies.append(_Endless())
            signed = sign_answer(
                200,
                SEALED_TYPE,
                bytes(32),
                server.signing,
                server.key_id,
                created=1,
                request_signature=request.headers["signature"],
                digest_field=DigestField.CONTENT,
            )
            return httpx.Response(200, headers=list(signed), stream=bodies[-1])

        transport, once = httpx.MockTransport(answer), RetryPolicy(attempts=1)
        client = ServerClient(Side.A, ROSTER.operator_a, PARTIES.keys_of(SITES[0]), transport, retry=once)
        try:
            for question in _QUESTIONS:
                with suppress(UnsignedAnswer):
                    question(client, folder)
        finally:
            client.close()
        taken = max(body.taken for body in bodies)
        return Found(taken > _FEW or len(bodies) < len(_QUESTIONS), taken)


def long_answers() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (WithoutEnd(),)
