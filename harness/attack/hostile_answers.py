"""Answers without an end to an agent, and words that write on the terminal of who reads its lines."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Final

import httpx

from client_agent.cli.agent import _print_event, _print_json
from client_agent.net.answers import Answer, UnsignedAnswer
from client_agent.net.exchange import problem_to_error
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.site.events import AgentEvent, EventKind
from harness.attack.attack import Attempt, Found, found
from harness.attack.scripted_agents import PARTIES, REQUESTER, ROSTER, SITES
from protocol.channel.envelope import SEALED_TYPE
from protocol.channel.signing import DigestField, sign_answer
from protocol.sharing import Side
from servers.problems import error_from

_SENT: Final = 32
"""Megabytes of each answer; a real one would go on."""
_STUDY: Final = "scripted"


class _Endless(httpx.SyncByteStream):
    """Counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < _SENT:
            self.taken += 1
            yield bytes(2**20)


def _unbounded(answer: Answer, most_bytes: int) -> Iterator[bytes]:
    stream = answer._response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    yield from stream


_QUESTIONS: Final[tuple[Callable[[ServerClient, Path], object], ...]] = (
    lambda client, folder: client.get_mail(_STUDY, "refusal", REQUESTER, SITES[0], 2**19),
    lambda client, folder: client.fetch_mail(_STUDY, "checkpoint-0", "every-site", REQUESTER, folder / "model", 4000),
    lambda client, folder: client.opening(_STUDY, 1, 1, 9000),
    lambda client, folder: client.fetch_output(_STUDY, 1, list, 7000),
)


def _without_end(folder: Path) -> Found:
    """A letter, a model, an opening and a sum, each with a signed head and a body without an end."""
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
    return Found(taken > 2 or len(bodies) < len(_QUESTIONS), taken)


_WORDS: Final = "no\x1b]0;owned\x07\x1b[2J \u202eevil\u2066 of it\ncontributor c2: released"
"""A title, a bell, a cleared screen, a turned reading direction, and a line that a program never wrote."""
_PROBLEM: Final = json.dumps({"code": "malformed_message", "detail": _WORDS}).encode()


def _printed(show: Callable[[AgentEvent], None]) -> str:
    """Events have lines of the program's own; what comes in is one line by then."""
    shown, text = io.StringIO(), _WORDS.replace("\n", " ")
    with redirect_stdout(shown):
        show(AgentEvent(kind=EventKind.DECLINED, site="c1", study="unit", round=1, text=text))
    return shown.getvalue().removesuffix("\n")


_PLACES: Final[Mapping[str, Callable[[], str]]] = {
    "an agent's line": lambda: _printed(_print_event),
    "an agent's line of JSON": lambda: str(json.loads(_printed(_print_json))["text"]),
    "a server's problem at an agent": lambda: problem_to_error(400, _PROBLEM, "operator-a").detail,
    "a server's problem at the other server": lambda: error_from(_PROBLEM, 400).detail,
}

ATTEMPTS: Final = {
    "answers-without-end": Attempt(_without_end, {"client_agent.net.answers.Answer._raw": _unbounded}),
    "words-that-write-on-a-terminal": Attempt(
        lambda _: found([name for name, shown in _PLACES.items() if not shown().isprintable()]),
        {"protocol.text._shown": lambda character: character},
    ),
}
