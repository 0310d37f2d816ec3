"""Both real server applications in one process: nothing but the sockets is missing, and every message is kept."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from harness.federation.clocks import ToldClock
from harness.federation.server_apps import AppsInMemory
from host.clock import Clock
from protocol.channel import session
from protocol.channel.envelope import ANSWER_TYPE, LENGTH_BYTES, Correspondence, open_answer, open_request
from protocol.messages.paths import PEER_SEALED, SEALED
from protocol.sharing import Side
from servers.correlations import OBLIVIOUS
from servers.server import Server, open_server
from servers.settings import load_settings
from tests.kit.databases import new_database
from tests.kit.processes import Federation


@contextmanager
def opened_server(config: Path, clock: Callable[[], float] = time.time) -> Iterator[Server]:
    """A server without ports or tasks; where it has no database yet, its schema is not made once more."""
    settings = load_settings(config)
    if not settings.data_dir.exists():
        settings.data_dir.mkdir(mode=0o700)
        new_database(settings.data_dir / "server.db")
    server = open_server(settings, clock)
    try:
        yield server
    finally:
        server.store.close()
        server.ckks.close()


_POLLED = ("/view", "/sessions/", "/history", "/v1/session")
"""Asked for as often as time allows, or fresh secrets; what else the answers say is in the database, which is compared
as a whole."""
_NOT_COMPARED = ("nonces", "alembic_version", "history", "histories")
"""Nonces are fresh random text with a time, drawn by the callers and related to nothing; histories count changes, name
a run by fresh random text and hold nothing of any study."""


Said = tuple[str, str, bytes, int, bytes]
"""Method, path, request body, status and answer, out of their envelopes."""


class WatchedApps(AppsInMemory):
    """Both servers, whose clocks stand still. ``said``: every message to or by each of them."""

    def __init__(self, federation: Federation, now_s: float) -> None:
        self.said: dict[Side, set[Said]] = {side: set() for side in Side}
        self._now_s = now_s
        self._keys = {keys.key_id: keys for keys in federation.parties.keys}
        self._earlier: dict[tuple[bytes, int], bytes] = {}
        super().__init__({side: federation.servers[side].config for side in Side}, transfer=OBLIVIOUS)

    def clock_of(self, party: str) -> Clock:
        return ToldClock(lambda: self._now_s)

    async def respond(self, side: Side, request: httpx.Request, left: list[httpx.Response]) -> None:
        await super().respond(side, request, left)
        opened = self._opened(side, request, left[0])
        if not any(part in opened[1] for part in _POLLED):
            for viewer in Side if request.url.path == PEER_SEALED else (side,):
                self.said[viewer].add(opened)

    def _opened(self, side: Side, request: httpx.Request, response: httpx.Response) -> Said:
        """Out of the envelopes and sessions, whose nonces and seals are new every time."""
        body, answer = request.content, response.content
        if response.headers.get("content-type") == session.SESSION_TYPE:
            return self._of_session(side, body, answer)
        if request.url.path not in (SEALED, PEER_SEALED) or "signature" not in response.headers:
            return request.method, request.url.path, body, response.status_code, answer
        stated = request.headers["signature-input"]
        caller, nonce = (re.search(f'{name}="([^"]+)"', stated) for name in ("keyid", "nonce"))
        server = re.search('keyid="([^"]+)"', response.headers["signature-input"])
        assert caller, stated
        assert nonce, stated
        assert server, response.headers
        between = Correspondence(caller[1], server[1], nonce[1])
        length = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")
        asked, first = open_request(body[LENGTH_BYTES:length], self._keys[server[1]].sealing, between)
        status, said = response.status_code, answer
        if response.headers["content-type"] == ANSWER_TYPE:
            status, said = open_answer(answer, self._keys[caller[1]].sealing, between)
        return asked.method, asked.target, first + body[length:], status, said

    def _of_session(self, side: Side, body: bytes, answer: bytes) -> Said:
        tagged = body[: session.HEAD_BYTES]
        head = session.read_head(tagged)
        server: Server = self.apps[side].state.server
        keys, end = server.sessions._of[head.session].keys, session.HEAD_BYTES + head.sealed_bytes
        asked, first, back = session.open_request(keys, tagged, body[session.HEAD_BYTES : end])
        length = LENGTH_BYTES + int.from_bytes(answer[:LENGTH_BYTES], "big")
        earlier = self._earlier.get((head.session, head.counter - back), b"") if back else b""
        said = session.open_answer(keys, head, answer[LENGTH_BYTES:length], earlier=earlier)
        self._earlier[head.session, head.counter] = said.body
        return asked.method, asked.target, first + body[end:], said.status, said.body + answer[length:]


def durable(federation: Federation, side: Side) -> dict[str, Any]:
    """Every row of every table and every file of one server."""
    data = federation.folder / federation.roster.operator(side).name / "data"
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted((data / "shares").iterdir())}
    connection = sqlite3.connect(data / "server.db")
    try:
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            if name not in _NOT_COMPARED:
                found[f"table {name}"] = sorted(connection.execute(f'select * from "{name}"'), key=repr)
    finally:
        connection.close()
    return found
