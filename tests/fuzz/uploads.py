"""Contributions of which a part comes: the connection ends, or nothing more is said, or they come again and again."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np

from harness.attack.scripted_requester import ScriptedRequester
from harness.attack.signed_client import Stranger
from protocol.messages.control import Announcement
from protocol.sharing import Side
from tests.fuzz.requests import Counts
from tests.kit.processes import Federation

KIND: Final = "site, unfinished upload"
_MOST_OPEN: Final = 100


@dataclass
class Unfinished:
    """Uploads of one listed site to a round that collects."""

    sites: ScriptedRequester[Federation]
    announcement: Announcement
    site: str
    random: Random
    counts: Counts
    held: list[ssl.SSLSocket] = field(default_factory=list)

    def __post_init__(self) -> None:
        federation = self.sites.federation
        self._strangers = {side: Stranger(federation.url(side), federation.ca_file) for side in Side}
        dimension = self.sites.study.parameters.dimension
        x = np.zeros(dimension, dtype=np.uint64)
        self._bodies = self.sites.seal_contribution(self.site, x, self.announcement)

    def begin(self) -> None:
        """One upload: a part of it, then the end or silence."""
        side = self.random.choice(tuple(Side))
        path = self.sites.contribution_path(self.announcement.round)
        whole = self.sites.clients[self.site].enclose(side, "PUT", path, self._bodies[side])
        head = [f"POST {_path(whole.url)} HTTP/1.1", f"Host: {whole.url.split('/')[2]}"]
        head += [f"{name}: {value}" for name, value in whole.headers]
        head += ["Content-Type: application/octet-stream", f"Content-Length: {len(whole.content)}"]
        sent = self.random.randrange(len(whole.content))
        with suppress(OSError):
            self.held.append(self._strangers[side].dial())
            self.held[-1].sendall("\r\n".join(head).encode() + b"\r\n\r\n" + whole.content[:sent])
        self.counts.note(KIND, 0, str)
        if self.random.random() < 0.5 and self.held:
            self.held.pop().close()
        while len(self.held) > _MOST_OPEN:
            self.held.pop(0).close()

    def close(self) -> None:
        for connection in self.held:
            connection.close()


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3]
