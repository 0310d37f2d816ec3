"""Answers of every framing over one connection, long ones past h11: whole, cut off, too long, and what is kept then."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import httpx
import pytest

from client_agent.net.ledger import Ledger, LedgerEntry
from client_agent.net.transport import KEPT_S, MOST_CONNECTIONS, Account, CountingTransport
from protocol.errors import TooLarge

LONG = bytes(range(256)) * 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class Line:
    """A connection whose other end says the given pieces, one for each read; then it has ended."""

    account = Account()

    def __init__(self, says: Iterable[bytes], breaks_at: int | None = None) -> None:
        self._says = iter(says)
        self._breaks_at = breaks_at
        self.heard = b""
        self.written: list[bytes] = []
        self.reads = 0
        self.is_readable = False
        self.closed = False
        self.waits: list[float | None] = []

    def read(self, most_bytes: int, within_s: float | None) -> bytes:
        self.reads += 1
        self.waits.append(within_s)
        return next(self._says, b"")

    def write(self, data: bytes, within_s: float | None) -> None:
        self.heard += data
        self.written.append(bytes(data))
        if self._breaks_at is not None and len(self.heard) > self._breaks_at:
            raise httpx.WriteError("broken pipe")

    def close(self) -> None:
        self.closed = True


class Pages:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []

    def require_room(self) -> None:
        return

    def append(self, entry: LedgerEntry) -> None:
        self.entries.append(entry)


class Lines(CountingTransport):
    """Hands the given connections out, one after the other."""

    def __init__(self, *lines: Line, clock: Sequence[float] = (0.0,), most: int = MOST_CONNECTIONS) -> None:
        times = iter((*clock[:-1], *(clock[-1] for _ in range(1000))))
        self.pages = Pages()
        super().__init__(
            "server", ssl.create_default_context(), cast(Ledger, self.pages), most=most, monotonic=lambda: next(times)
        )
        self._left = list(lines)
        self.closes_meanwhile = False

    def open_stream(self, url: httpx.URL, account: Account, within_s: float | None) -> Line:  # type: ignore[override]
        if self.closes_meanwhile:
            self.close()
        if not self._left:
            raise httpx.ConnectError("nobody listens")
        return self._left.pop(0)


def asked(lines: Lines, method: str = "GET", content: bytes | Iterator[bytes] | None = None) -> httpx.Response:
    headers = [("Host", "server")]
    if content is not None:
        headers.append(("Content-Length", str(len(content) if isinstance(content, bytes) else 300)))
    waits = {"connect": 1.0, "read": 2.0, "write": 3.0, "pool": 0.05}
    return lines.handle_request(
        httpx.Request(method, "http://server/x", headers=headers, content=content, extensions={"timeout": waits})
    )


def body_of(response: httpx.Response) -> bytes:
    try:
        assert isinstance(response.stream, Iterable)
        return b"".join(response.stream)
    finally:
        response.close()


@pytest.mark.parametrize("cut", [1, 3, 40, 70, len(LONG)])
def test_a_long_body_comes_as_it_was_sent_and_the_connection_serves_again(cut: int) -> None:
    answer = HEAD % len(LONG) + LONG
    line = Line([answer[:cut], answer[cut:], *([HEAD % 5 + b"short"] * 2)])
    pool = Lines(line)
    assert body_of(asked(pool)) == LONG
    assert body_of(asked(pool, "PUT", b"what is asked")) == b"short"
    assert line.heard.endswith(b"\r\n\r\nwhat is asked")
    assert (line.closed, set(line.waits)) == (False, {2.0})
    pool.close()
    assert line.closed


@pytest.mark.parametrize(
    ("pieces", "writes"),
    [
        ([b"what", b" is", b" asked"], [13]),
        ([b"", b"front", LONG], [5, len(LONG)]),
        ([LONG, b"end"], [0, len(LONG), 3]),
        ([LONG[:10_000]] * 4, [10_000, 10_000, 10_000, 10_000]),
        ([LONG[:5_000]] * 4, [15_000, 5_000]),
        ([], [0]),
    ],
)
def test_a_small_request_goes_in_one_piece_and_a_long_body_as_it_comes(pieces: list[bytes], writes: list[int]) -> None:
    """``writes``: how much of the body each one holds; the first one begins with the head."""
    line = Line([HEAD % 2 + b"ok"])
    pool, whole = Lines(line), b"".join(pieces)
    request = httpx.Request(
        "POST",
        "http://server/x",
        headers=[("Host", "server"), ("Content-Length", str(len(whole)))],
        content=iter(pieces),
        extensions={"timeout": {"write": 3.0}},
    )
    assert body_of(pool.handle_request(request)) == b"ok"
    head = line.heard.index(b"\r\n\r\n") + 4
    assert line.heard[head:] == whole
    assert [len(line.written[0]) - head, *map(len, line.written[1:])] == writes


def test_pieces_of_a_long_body_pass_as_they_are() -> None:
    pieces = [LONG[:100_000], LONG[100_000:200_000], LONG[200_000:]]
    response = asked(Lines(Line([HEAD % len(LONG), *pieces])))
    assert isinstance(response.stream, Iterable)
    taken = [piece for piece in response.stream if piece]
    assert [id(piece) for piece in taken] == [id(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("method", "says", "found"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 300000\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD % 2 + b"ok", b"ok"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", b"ok"),
        ("GET", b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nwhy", b"why"),
        ("HEAD", HEAD % len(LONG), b""),
    ],
)
def test_other_answers_go_through_h11_and_the_connection_serves_again(method: str, says: bytes, found: bytes) -> None:
    line = Line([says, HEAD % 1 + b"!"])
    pool = Lines(line)
    assert body_of(asked(pool, method)) == found
    assert body_of(asked(pool)) == b"!"
    assert not line.closed


@pytest.mark.parametrize("sent", [0, 10, len(LONG) - 1])
def test_a_long_body_that_ends_early_is_none(sent: int) -> None:
    line = Line([HEAD % len(LONG) + LONG[:sent]])
    response = asked(Lines(line))
    with pytest.raises(httpx.NetworkError, match=f"{len(LONG) - sent} bytes before the end"):
        body_of(response)
    assert line.closed


FORGED = HEAD % 6 + b"forged"


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ([HEAD % len(LONG) + LONG + FORGED], LONG),
        ([HEAD % len(LONG), LONG + FORGED], LONG),
        ([HEAD % 2 + b"ok" + FORGED], b"ok"),
        ([HEAD % 2 + b"okHTTP"], b"ok"),
    ],
    ids=["long", "long behind its head", "short", "half a head"],
)
def test_what_comes_behind_an_answer_belongs_to_no_other(says: list[bytes], found: bytes) -> None:
    """The next request goes over another connection: nobody can answer it before it was asked."""
    line = Line(says)
    pool = Lines(line, Line([HEAD % 4 + b"true"]))
    assert body_of(asked(pool)) == found
    assert line.closed
    assert body_of(asked(pool)) == b"true"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(LONG),
        b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LONG),
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["says so", "older", "ends its answer with it"],
)
def test_a_connection_that_the_server_ends_serves_no_more(head: bytes) -> None:
    line = Line([head, LONG])
    assert body_of(asked(Lines(line))) == LONG
    assert line.closed


def test_a_long_body_that_is_left_ends_the_connection() -> None:
    line = Line([HEAD % len(LONG), LONG[:1000], LONG[1000:]])
    response = asked(Lines(line))
    assert isinstance(response.stream, Iterable)
    assert b"".join(piece for piece, _ in zip(response.stream, range(2), strict=False)) == LONG[:1000]
    response.close()
    assert line.closed


@pytest.mark.parametrize(
    ("says", "match"),
    [
        ([], "without an answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 300000\r\n\r\n"], "Content-Length"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "status line"),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], "SWITCH_UPGRADE"),
        ([HEAD % 5 + b"sho"], "without sending complete message body"),
    ],
)
def test_what_is_no_answer_is_refused(says: list[bytes], match: str) -> None:
    line = Line(says)
    with pytest.raises(httpx.NetworkError, match=match):
        body_of(asked(Lines(line)))
    assert line.closed


def test_a_head_without_an_end_is_refused() -> None:
    line = Line([b"HTTP/1.1 200 OK\r\nX: " + bytes([97]) * 2**17])
    with pytest.raises(TooLarge, match="a head of more than"):
        asked(Lines(line))
    assert line.closed


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("behind", [b"5;", b"0\r\nX: "], ids=["extension", "trailer"])
def test_what_no_signature_covers_is_no_word_of_the_server_that_it_was_too_large(behind: bytes) -> None:
    line = Line([CHUNKED + behind + bytes([97]) * 2**17])
    with pytest.raises(httpx.NetworkError):
        body_of(asked(Lines(line)))
    assert line.closed


def test_after_half_a_request_the_connection_serves_no_more() -> None:
    line = Line([HEAD % 4 + b"less"], breaks_at=350)  # h11 has the whole request by then, the server has not
    pool = Lines(line)
    assert body_of(asked(pool, "PUT", iter([bytes(100)] * 3))) == b"less"
    assert line.closed


def test_a_name_that_is_none_is_a_server_out_of_reach(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    pool = CountingTransport("server", ssl.create_default_context(), ledger)
    with pytest.raises(httpx.ConnectError):
        pool.handle_request(httpx.Request("GET", "https://a..example/x", extensions={"timeout": {"connect": 1.0}}))
    ledger.close()


def test_every_piece_has_its_time_and_a_proxys_answer_is_none() -> None:
    times = iter([0.0, 599.0, 700.0, 1301.0])
    account = Account(monotonic=lambda: next(times))
    account.tunnelled(10, 20)
    account.received(1)
    account.received(1)
    account.begins()
    account.received(1)
    with pytest.raises(httpx.ReadTimeout, match="next part"):
        account.received(1)
    assert (account.sent_bytes, account.received_bytes) == (10, 24)


def test_an_answer_that_comes_before_all_was_sent_is_heard() -> None:
    line = Line([b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nless"], breaks_at=100)
    response = asked(Lines(line), "PUT", iter([bytes(100)] * 3))
    assert (response.status_code, body_of(response)) == (413, b"less")
    assert line.closed


def test_a_body_of_another_length_than_said_is_not_sent() -> None:
    line = Line([])
    headers = [("Host", "server"), ("Content-Length", "5")]
    request = httpx.Request("PUT", "http://server/x", headers=headers, content=b"four")
    with pytest.raises(httpx.NetworkError, match="Content-Length"):
        Lines(line).handle_request(request)
    assert line.closed


@pytest.mark.parametrize("why", ["age", "ended", "the server moved"])
def test_a_connection_that_serves_no_more_is_replaced(why: str) -> None:
    line, other = Line([HEAD % 3 + b"one"]), Line([HEAD % 3 + b"two"])
    pool = Lines(line, other, clock=(0.0, 0.0, KEPT_S + 1 if why == "age" else 1.0))
    assert body_of(asked(pool)) == b"one"
    line.is_readable = why == "ended"
    elsewhere = httpx.Request("GET", "http://elsewhere/x")
    assert body_of(pool.handle_request(elsewhere) if why == "the server moved" else asked(pool)) == b"two"
    assert (line.closed, other.closed) == (True, False)


def test_a_pool_has_no_more_than_its_connections() -> None:
    pool = Lines(Line([HEAD % len(LONG), LONG]), most=1)
    first = asked(pool)
    with pytest.raises(httpx.ReadTimeout, match="under way"):
        asked(pool)
    assert body_of(first) == LONG


def test_two_requests_at_once_take_two_connections() -> None:
    lines = [Line([HEAD % 3 + b"one"]), Line([HEAD % 3 + b"two"])]
    pool = Lines(*lines)
    first, second = asked(pool), asked(pool)
    assert {body_of(first), body_of(second)} == {b"one", b"two"}
    assert not any(line.closed for line in lines)


def test_every_request_is_in_the_ledger_once() -> None:
    pool = Lines(Line([HEAD % 3 + b"one"]))
    assert body_of(asked(pool)) == b"one"
    with pytest.raises(httpx.NetworkError):
        asked(pool)
    assert [entry.status for entry in pool.pages.entries] == [200, None]


def test_nobody_listens_and_the_next_request_tries_again() -> None:
    pool = Lines(most=1)
    for _ in range(2):
        with pytest.raises(httpx.ConnectError, match="nobody listens"):
            asked(pool)


def test_a_pool_that_is_closed_while_it_connects_keeps_nothing_open() -> None:
    line = Line([HEAD % 3 + b"one"])
    pool = Lines(line)
    pool.closes_meanwhile = True
    with pytest.raises(httpx.ConnectError, match="closed while it was made"):
        asked(pool)
    assert line.closed


def test_closing_the_pool_ends_a_request_that_waits() -> None:
    class Silent(Line):
        def __init__(self) -> None:
            super().__init__([])
            self.ended = threading.Event()

        def read(self, most_bytes: int, within_s: float | None) -> bytes:
            assert self.ended.wait(20)
            raise httpx.NetworkError("the socket was closed")

        def write(self, data: bytes, within_s: float | None) -> None:
            threading.Thread(target=pool.close).start()

        def close(self) -> None:
            super().close()
            self.ended.set()

    line = Silent()
    pool = Lines(line)
    with pytest.raises(httpx.NetworkError, match="was closed"):
        asked(pool)
    assert line.closed
