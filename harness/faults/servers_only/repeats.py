"""The same question brings the same answer, for as long as nothing has changed where it is asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import httpx

from protocol.sharing import Side
from servers.server import Server

_KINDS: Final = frozenset(
    {"lock", "challenge", "products", "release_set", "contribution", "announce", "queries", "release", "end"}
)
_FIRST_REDIRECT: Final = 300
_FIRST_ERROR_OF_A_SERVER: Final = 500
_Standing = tuple[object, ...]


@dataclass
class Repeats:
    """``broken``: what was answered before and is refused now, or answered otherwise, each with its promise's name."""

    broken: list[str] = field(default_factory=list)
    _answered: dict[tuple[Side, str, str], tuple[_Standing, bytes]] = field(default_factory=dict)

    def answered(self, server: Server, request: httpx.Request, answer: httpx.Response) -> None:
        """A server has answered; one that has no room, or cannot reach its disk, may say so at any time."""
        kind = str(request.extensions["purpose"])
        if request.method == "GET" or kind not in _KINDS or answer.status_code >= _FIRST_ERROR_OF_A_SERVER:
            return
        place = (server.side, str(request.url), hashlib.sha256(request.content).hexdigest())
        standing, taken = _standing(server), answer.status_code < _FIRST_REDIRECT
        if place not in self._answered:
            if taken:
                self._answered[place] = (standing, answer.content)
            return
        before, said = self._answered[place]
        if before == standing and (not taken or said != answer.content):
            self.broken.append(f"another answer: server {server.side.value} to the same {kind} in the same round")


def _standing(server: Server) -> _Standing:
    """Where the newest round of every study stands."""
    found = [server.store.current_round(study.digest) for study in server.store.studies()]
    return tuple((one.key, one.state) for one in found if one is not None)
