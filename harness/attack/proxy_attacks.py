"""A proxy that opens TLS, as hospitals have them, before a real server and an agent's own client.

It keeps, alters, loses and makes up what passes. It may stop it; it must not be believed, and it must not make a server
say what an agent believes. At the end: answers without an end to an agent, and words that write on the terminal of who
reads its lines.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx
from fastapi import FastAPI

from client_agent.cli.agent import _print_event, _print_json
from client_agent.net import server_client
from client_agent.net.answers import Answer, UnsignedAnswer
from client_agent.net.envelopes import Body
from client_agent.net.exchange import problem_to_error
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.site.events import AgentEvent, EventKind
from harness.attack.attack import NO_SIGNATURE_COUNTS, Attempt, Found, found, passes, replaced
from harness.attack.scripted_agents import PARTIES, REQUESTER, ROSTER
from harness.attack.scripted_rounds import OTHER, SITES, VICTIM, OpenRound, RoundInMemory, pair_in_memory
from harness.attack.signed_client import Reached, digest_of, there
from harness.federation import server_apps
from protocol.channel.envelope import ANSWER_TYPE, LENGTH_BYTES, SEALED_TYPE, Correspondence, close_answer
from protocol.channel.sealing import SealedReader, sealed_small_length
from protocol.channel.session import HEAD_BYTES, SESSION_TYPE
from protocol.channel.signing import DigestField, sign_answer
from protocol.errors import MoietyError, RefusedMessage, Unavailable
from protocol.messages import bodies
from protocol.messages.control import Message, OutputHeader, ReadyNotice, Receipt, Signed
from protocol.parameters import Needs
from protocol.sharing import Side
from servers.api.envelope import _Body
from servers.problems import error_from

Tamper: TypeAlias = Callable[[httpx.Request, httpx.Response], httpx.Response]
Change: TypeAlias = Callable[[bytes], bytes]
_KEY_ID: Final = re.compile(r'keyid="([^"]+)"')
_NONCE: Final = re.compile(r'nonce="([^"]+)"')
_DIMENSION: Final = 2_000
"""Most of such a share stands behind the envelope."""


def whole(answer: httpx.Response) -> httpx.Response:
    """A copy that can be read once more."""
    return httpx.Response(answer.status_code, headers=answer.headers, content=answer.read())


def as_it_is(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
    return answer


@dataclass
class Proxy(httpx.BaseTransport):
    """Hands on what ``change`` makes of a request's body, and what ``tamper`` makes of the answer to it.

    ``loses`` says of the n-th request (from 0) that it does not arrive, ``forgets`` that its answer does not.
    """

    onward: httpx.BaseTransport
    change: Change = bytes
    tamper: Tamper = as_it_is
    loses: Callable[[int], bool] = lambda number: False
    forgets: Callable[[int], bool] = lambda number: False
    asked: list[httpx.Request] = field(default_factory=list)
    answers: list[httpx.Response] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body, number = self.change(request.read()), len(self.asked)
        self.asked.append(request)
        if self.loses(number):
            raise httpx.ConnectError("the proxy lost the request", request=request)
        headers = [(name, value) for name, value in request.headers.multi_items() if name != "content-length"]
        answer = whole(
            self.onward.handle_request(httpx.Request(request.method, request.url, headers=headers, content=body))
        )
        self.answers.append(whole(answer))
        if self.forgets(number):
            raise httpx.ReadError("the proxy lost the answer", request=request)
        return self.tamper(request, answer)

    def close(self) -> None:
        self.onward.close()


def agents_client(
    servers: Reached, side: Side, site: str, through: httpx.BaseTransport, *, in_sessions: bool = False
) -> ServerClient:
    """A site's client as its agent has it, two attempts a request, behind ``through``."""
    retry = server_client.RetryPolicy(attempts=2, first_wait_s=0.0, longest_wait_s=0.001)
    operator = servers.roster.operator(side)
    keys, clock = servers.keys(site), servers.clock.now
    return ServerClient(side, operator, keys, through, retry=retry, clock=clock, in_sessions=in_sessions)


def share_of(opened: RoundInMemory, site: str, folder: Path) -> Body:
    """A site's honest share for server B, as its agent sends it."""
    share, path = opened.honest[site][Side.B].sealed(), folder / f"{site}.share"
    path.write_bytes(share)
    return Body.contribution(path, digest_of(share, DigestField.SEALED))


@dataclass(frozen=True)
class Between:
    """One round of two real servers, of which the victim's client at server B speaks through the proxy."""

    opened: RoundInMemory
    proxy: Proxy
    client: ServerClient
    folder: Path

    @property
    def study(self) -> str:
        return self.opened.sites.study.name

    @cached_property
    def share(self) -> Body:
        """Made once: sealing it again would give other bytes, which the server refuses as a second share."""
        return share_of(self.opened, VICTIM, self.folder)

    def contribute(self) -> Signed[Receipt]:
        return self.client.contribute(self.study, self.opened.number, 1, self.share)

    def ready(self) -> None:
        self.client.ready(self.study, ReadyNotice(study_digest=self.opened.sites.study.digest(), site=VICTIM))

    def view(self) -> object:
        return self.client.view(self.study)

    def questions(self) -> Mapping[str, Callable[[], object]]:
        return {"a share": self.contribute, "a notice": self.ready, "a question": self.view}


def _behind(reaches: Callable[[Between], Iterator[str]], in_sessions: bool, folder: Path) -> Found:
    with pair_in_memory(folder) as pair:
        opened = pair.round(_DIMENSION, opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        proxy = Proxy(there(pair.federation.connect, "way to the servers")())
        with closing(agents_client(pair.federation, Side.B, VICTIM, proxy, in_sessions=in_sessions)) as client:
            return found(list(reaches(Between(opened, proxy, client, folder))))


def _answered(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except MoietyError:
        return False
    return True


def _believed(ask: Callable[[], object]) -> bool:
    """Return whether a client takes what comes for the server's word, an answer or a refusal."""
    try:
        ask()
    except Unavailable:
        return False
    except RefusedMessage:
        return True
    return True


# --- requests that are altered, lengthened, cut off or lost -----------------------------------------------------------


def _envelope_end(body: bytes) -> int:
    return LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")


def _flipped(body: bytes, at: int) -> bytes:
    at %= len(body)
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


_CHANGES: Final[Mapping[str, Change]] = {
    "the first byte behind the envelope": lambda body: _flipped(body, _envelope_end(body)),
    "the last byte": lambda body: _flipped(body, -1),
    "cut off": lambda body: body[:-1],
    "nothing behind the envelope": lambda body: body[: _envelope_end(body)],
}
_LONGER: Final[Mapping[str, Change]] = {
    "a byte more": lambda body: body + b"\0",
    "eight megabytes more": lambda body: body + bytes(2**23),
}


def _alters_a_share(at: Between) -> Iterator[str]:
    """The server itself refuses what is altered, over its signature: a site would take no part then."""
    for words, change in _CHANGES.items():
        at.proxy.change = change
        if _believed(at.contribute):
            yield words
    at.proxy.change = bytes
    if at.contribute().message.site != VICTIM:
        yield "the share was not taken once the proxy left it alone"


def _lengthens(at: Between) -> Iterator[str]:
    """Bytes behind what is signed: a refusal for them would be signed, and be believed."""
    for words, change in _LONGER.items():
        at.proxy.change = change
        yield from (f"{what}, {words}" for what, ask in at.questions().items() if not _answered(ask))


def _loses(at: Between) -> Iterator[str]:
    """Requests that do not arrive, or whose answers do not: sent again, they get what they got."""
    for words in ("loses", "forgets"):
        setattr(at.proxy, words, lambda number: number % 2 == 0)
        yield from (f"{what} that it {words}" for what, ask in at.questions().items() if not _answered(ask))
        setattr(at.proxy, words, lambda number: False)
    receipts = {at.contribute().canonical() for _ in range(2)}
    if len(receipts) > 1:
        yield "the same share got two receipts"


def _all_of_it(body: _Body, enclosed: bytes, body_bytes: int) -> None:
    """Whatever stands behind an envelope belongs to it."""
    body._held[:0] = enclosed
    body._left = 2**40


# --- answers that are made up, altered, kept for later or given to another question -----------------------------------


def _plain(status: int, content: bytes) -> Tamper:
    return lambda request, answer: httpx.Response(status, content=content)


def _problem(code: str, detail: str) -> bytes:
    return json.dumps({"code": code, "detail": detail}).encode()


def _without_length(answer: httpx.Response) -> list[tuple[str, str]]:
    return [(name, value) for name, value in answer.headers.multi_items() if name != "content-length"]


def _with_body(content: bytes) -> Tamper:
    return lambda request, answer: httpx.Response(200, headers=_without_length(answer), content=content)


def _in_an_envelope(at: Between, status: int, content: bytes, signer: str | None = None) -> Tamper:
    """Sealed to the site, as anybody can: what is missing is the server's signature.

    The proxy of a hospital has that hospital's key at best: where ``signer`` signs, it claims the server's key.
    """
    federation = at.opened.federation
    server = federation.roster.operator_b

    def tamper(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        stated = request.headers["signature-input"]  # what anybody on the way reads of a request's signature
        caller, nonce = (there(pattern.search(stated), "key and nonce")[1] for pattern in (_KEY_ID, _NONCE))
        between = Correspondence(caller, server.key_id, nonce)
        made = close_answer(status, content, federation.keys(VICTIM).sealing.public, between)
        if signer is None:
            return httpx.Response(200, headers=_without_length(answer), content=made)
        headers = sign_answer(
            200,
            ANSWER_TYPE,
            hashlib.sha256(made).digest(),
            federation.keys(signer).signing,
            server.key_id,
            created=int(federation.clock.now()),
            request_signature=request.headers["signature"],
        )
        return httpx.Response(200, headers=list(headers), content=made)

    return tamper


def _lies(at: Between) -> dict[str, Tamper]:
    """Answers that a proxy may show in place of a view of the study."""
    view = at.opened.sites.view(Side.B, VICTIM)
    end = view.model_copy(update={"end": at.opened.sites.ended()}).canonical()
    bare = json.dumps({**json.loads(view.canonical()), "state": "completed", "reason": "over"}).encode()
    refused = _problem("not_listed", "you are out")
    return {
        "an end in plain": _plain(200, end),
        "an end without its requester": _plain(200, bare),
        "a refusal in plain": _plain(403, refused),
        "no such study": _plain(404, _problem("unknown_study", "gone")),
        "a page of its own": _plain(200, b"<html>sign in to the hospital's network</html>"),
        "an end in an envelope": _in_an_envelope(at, 200, end),
        "a refusal in an envelope": _in_an_envelope(at, 403, refused),
        "an end that a site signs": _in_an_envelope(at, 200, end, OTHER),
        "a refusal that a site signs": _in_an_envelope(at, 403, refused, OTHER),
        "another status": lambda request, answer: httpx.Response(404, headers=answer.headers, content=answer.content),
        "one bit": lambda request, answer: httpx.Response(
            200, headers=answer.headers, content=_flipped(answer.content, -1)
        ),
        "half of it": lambda request, answer: _with_body(answer.content[:-100])(request, answer),
    }


def _believed_lies(at: Between, lies: Mapping[str, Tamper], before: Callable[[], None] = passes) -> Iterator[str]:
    for words, lie in lies.items():
        before()
        at.proxy.tamper = lie
        if _believed(at.view):
            yield words
        at.proxy.tamper = as_it_is
        if not _believed(at.view):
            yield f"{words}: and the client did not go on after it"


def _makes_answers_up(at: Between) -> Iterator[str]:
    """Whatever comes without the server's signature over this very request says nothing, and is asked for again."""
    at.ready()
    at.view()
    taken, old = at.proxy.answers[0], at.proxy.answers[1]
    lies = {
        **_lies(at),
        "an old view again": lambda request, answer: whole(old),
        "the answer to another question": lambda request, answer: whole(taken),
    }
    yield from _believed_lies(at, lies)


def _swaps_a_sum(at: Between) -> Iterator[str]:
    """A sum's half is made while it is sent: its head is signed, its chunks are authenticated by the key in it."""
    opened, key = at.opened, at.opened.federation.keys(VICTIM).sealing

    def fetch(number: int) -> bytes:
        def take(pieces: Iterator[bytes]) -> bytes:
            return b"".join(bodies.open_body(SealedReader(key), pieces))

        return at.client.fetch_output(at.study, number, take, 2**16)

    opened.finish()
    fetch(opened.number)
    earlier = at.proxy.answers[-1]
    following = opened.sites.announcement(opened.number + 1, listed=opened.announcement.listed, opens=Needs.NOTHING)
    later = OpenRound(opened.sites, following, opened.x)
    later.finish()
    fetch(later.number)
    fetched = at.proxy.answers[-1].content
    swaps: dict[str, Tamper] = {
        "the first bit": _with_body(_flipped(fetched, 0)),
        "a bit of the head": _with_body(_flipped(fetched, 40)),
        "the last bit": _with_body(_flipped(fetched, -1)),
        "cut off": _with_body(fetched[:-1]),
        "nothing": _with_body(b""),
        "the sum of the round before": lambda request, answer: whole(earlier),
    }
    for words, swap in swaps.items():
        at.proxy.tamper = swap
        if _believed(lambda: fetch(later.number)):
            yield words


# --- a site that asks in a session ------------------------------------------------------------------------------------

_SESSION: Final = {"content-type": SESSION_TYPE}


def _in_session(answer: httpx.Response) -> bool:
    return answer.status_code == httpx.codes.OK and answer.headers.get("content-type") == SESSION_TYPE


def _replays_in_a_session(at: Between) -> Iterator[str]:
    """Every request of a session counts up, says when it was made, and is bound to its head and its server."""
    servers, proxy = at.opened.federation, at.proxy
    at.view()
    at.ready()
    one, other = (request for request in proxy.asked if request.headers["content-type"] == SESSION_TYPE)
    mixed = one.content[:HEAD_BYTES] + other.content[HEAD_BYTES:]
    lost = len(proxy.asked)  # a request that the proxy keeps; the agent's client sends another
    proxy.loses = lambda number: number == lost
    at.view()
    for words, side, content, after_s in (
        ("again", Side.B, one.content, 0),
        ("at the other server", Side.A, one.content, 0),
        ("the head of one, the content of another", Side.B, mixed, 0),
        ("after most of an hour", Side.B, proxy.asked[lost].content, 3000),
    ):
        servers.apps.clock.jump(after_s)
        url = f"{servers.url(side)}{one.url.path}"
        asked = httpx.Request("POST", url, headers=_SESSION, content=content)
        if _in_session(whole(proxy.onward.handle_request(asked))):
            yield words
    at.view()


def _makes_up_in_a_session(at: Between) -> Iterator[str]:
    """Whatever the session's keys do not open says nothing, but that the request is sent again in an envelope."""
    at.ready()
    at.view()
    taken, old = at.proxy.answers[-2], at.proxy.answers[-1]

    def of_session(content: bytes) -> httpx.Response:
        return httpx.Response(200, headers=_SESSION, content=content)

    lies: dict[str, Tamper] = {
        "an old view again": lambda request, answer: whole(old),
        "the answer to another question": lambda request, answer: whole(taken),
        "one bit": lambda request, answer: of_session(_flipped(old.content, -1)),
        "half of it": lambda request, answer: of_session(answer.content[:-100]),
        "nothing": lambda request, answer: of_session(b""),
        "a refusal in plain": _plain(404, _problem("unknown_study", "gone")),
        "the session is over, for ever": _plain(401, _problem("session_unknown", "over")),
    }

    def in_a_session_again() -> None:
        """A client that was lied to asks in envelopes for a while."""
        at.opened.federation.apps.clock.jump(1200)
        at.view()
        assert at.proxy.asked[-1].headers["content-type"] == SESSION_TYPE

    yield from _believed_lies(at, lies, in_a_session_again)


# --- a proxy on both connections that only reads ----------------------------------------------------------------------

_LEAST_BYTES: Final = 100_000
_OVERHEAD: Final = sealed_small_length(0)


@contextmanager
def all_that_passes() -> Iterator[list[bytes]]:
    """Read every request to servers in memory and its answer: address, headers and body, between the servers too."""
    passed: list[bytes] = []
    carry = server_apps._answer

    async def read(app: FastAPI, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        answer = await carry(app, request)
        passed.extend((str(request.url).encode(), repr(request.headers).encode(), content))
        passed.extend((repr(answer.headers).encode(), answer.content))
        return answer

    with replaced(server_apps, "_answer", read):
        yield passed


def _reads_a_round(folder: Path) -> Found:
    """Everything that passes is searched for names and for the keys of all messages."""
    with all_that_passes() as passed, pair_in_memory(folder) as pair:
        opened = pair.round(_DIMENSION, opens=Needs.DISTANCES)
        opened.finish()
        roster = pair.federation.roster
        operators = [party.name for party in (roster.operator_a, roster.operator_b)]
    seen = b"\n".join(passed)
    if len(seen) < _LEAST_BYTES or b"/v1/peer/sealed" not in seen:
        raise RuntimeError(f"only {len(seen)} bytes passed the proxy: that was no whole round")
    # Of all messages, but for those of the public header of an output and of a masked sum.
    keys = sorted(set(fields_of(Message)) - set(OutputHeader.model_fields))
    words = (*SITES, *operators, opened.sites.study.name, *(f'"{key}":' for key in keys))
    read_words = [word for word in words if word.encode() in seen]
    return Found(bool(read_words), len(read_words), ", ".join(read_words[:20]))


def fields_of(message: type[Message]) -> Iterator[str]:
    """The names of this message's fields and of all derived kinds."""
    yield from message.model_fields
    for kind in message.__subclasses__():
        yield from fields_of(kind)


_UNBOUND: Final[Mapping[str, object]] = {
    **NO_SIGNATURE_COUNTS,
    "protocol.channel.envelope.Correspondence.info": lambda between, what: what.encode(),
}
"""No signature is looked at, and an envelope is bound to no request."""


def _attempt(
    reaches: Callable[[Between], Iterator[str]], without: Mapping[str, object], *, in_sessions: bool = False
) -> Attempt:
    return Attempt(partial(_behind, reaches, in_sessions), without)


# --- answers without an end, and words that write on a terminal -------------------------------------------------------


_SENT: Final = 32
"""Megabytes of each answer; a real one would go on."""
_STUDY, _SITE = "scripted", ROSTER.contributors[0].name


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
    lambda client, folder: client.get_mail(_STUDY, "refusal", REQUESTER, _SITE, 2**19),
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
    with closing(ServerClient(Side.A, ROSTER.operator_a, PARTIES.keys_of(_SITE), transport, retry=once)) as client:
        for question in _QUESTIONS:
            with suppress(UnsignedAnswer):
                question(client, folder)
    taken = max(body.taken for body in bodies)
    return Found(taken > 2 or len(bodies) < len(_QUESTIONS), taken)


_WORDS: Final = "no\x1b]0;owned\x07\x1b[2J \u202eevil\u2066 of it\ncontributor c2: released"
"""A title, a bell, a cleared screen, a turned reading direction, and a line that a program never wrote."""
_PROBLEM: Final = _problem("malformed_message", _WORDS)


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
    "proxy-reads-a-round": Attempt(
        _reads_a_round,
        {  # as long as sealed, and in clear
            "protocol.channel.envelope.seal_small": lambda content, to, info: content + bytes(_OVERHEAD),
            "protocol.channel.envelope.open_small": lambda content, key, info: content[:-_OVERHEAD],
        },
    ),
    "proxy-makes-answers-up": _attempt(_makes_answers_up, _UNBOUND),
    "proxy-swaps-a-sum": _attempt(_swaps_a_sum, _UNBOUND),
    "proxy-alters-a-share": _attempt(_alters_a_share, {"client_agent.net.exchange._ALTERED": ()}),
    "proxy-lengthens-requests": _attempt(_lengthens, {"servers.api.envelope._Body.put_back": _all_of_it}),
    "proxy-loses-requests": _attempt(
        _loses, {"client_agent.net.server_client.RetryPolicy": lambda **_: RetryPolicy(attempts=1)}
    ),
    "session-requests-replayed": _attempt(
        _replays_in_a_session,
        {"protocol.channel.session.CounterWindow.take": passes, "servers.identity.sessions.require_time": passes},
        in_sessions=True,
    ),
    "session-answers-made-up": _attempt(
        _makes_up_in_a_session,
        {
            "protocol.channel.session._nonce": lambda counter: bytes(12),
            "protocol.channel.session._asked_by": lambda head: b"",
        },
        in_sessions=True,
    ),
    "answers-without-end": Attempt(_without_end, {"client_agent.net.answers.Answer._raw": _unbounded}),
    "words-that-write-on-a-terminal": Attempt(
        lambda _: found([name for name, shown in _PLACES.items() if not shown().isprintable()]),
        {"protocol.text._shown": lambda character: character},
    ),
}
