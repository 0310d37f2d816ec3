"""Letters and conflicts by which one site would fill the servers' disks and everybody's views."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.catalogue.refused import Refused, Row, Words
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted_rounds import EARLY, REQUESTER, SITES, SMALL, STRANGER, VICTIM, Pair, Phase, refusals
from harness.federation.memory.servers import ServersInMemory
from protocol.bodies.letter import NOTICE_BYTES
from protocol.errors import ErrorCode as E
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.channel.sealing import sealed_length, sealed_small_length

_NOTICE: Final = sealed_small_length(NOTICE_BYTES)
_MODEL: Final = sealed_length(4 * SMALL)
_MEGABYTE: Final = 2**20
_CONFLICTS: Final = 105
_ROUNDS: Final = 3
_MOST_RECORDED: Final = 100
_WORDS: Final = ("decline", "x", "refusal", "weights", "welcome")
_TOPICS: Final = (
    *(f"{word}-{number}" for number in range(2, 5) for word in _WORDS),
    *("decline", "decline-01", "decline-1-1", "decline--1", "refusal-0", "checkpoint", "every-site"),
)
_LENGTHS: Final[Mapping[str, object]] = {
    "servers.routes.mail.most_bytes": lambda *_: 2**22,
    "servers.routes.mail.require_length": passes,
}


def _letter(topic: str, size: int, sender: str = VICTIM, recipient: str = REQUESTER) -> Act:
    return lambda r: r.client(sender).send(
        Side.A, "PUT", r.path(paths.MAIL, topic=topic, recipient=recipient), bytes(size)
    )


def _without_a_length(r: Round) -> httpx.Response:
    """A megabyte whose request does not say how long it is."""
    client = r.client(VICTIM)
    path = r.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
    return client.post(client.enclose(Side.A, "PUT", path, bytes(_MEGABYTE)), chunked=True)


def _sizes() -> Refused:
    settled, short, long = Phase.SETTLED, "a notice of {} bytes", (413, E.TOO_LARGE)
    return Refused(
        Words(
            "letters-of-every-size",
            Party.SITE,
            "leaves letters that are empty, short, a byte too long or a megabyte long",
            "letters have one length, which is checked before a byte of them is read",
        ),
        _LENGTHS,
        (
            *(
                Row(short.format(size), _letter("refusal", size), 400, E.MALFORMED_MESSAGE, settled)
                for size in (0, 1, 74, _NOTICE - 1)
            ),
            *(
                Row(short.format(size), _letter("refusal", size), *long, settled)
                for size in (_NOTICE + 1, 2 * _NOTICE, _MEGABYTE)
            ),
            Row("a megabyte without a stated length", _without_a_length, *long, settled),
            Row("a model a byte too long", _letter("checkpoint-0", _MODEL + 1, REQUESTER, paths.EVERY_SITE), *long),
            Row("fifty models in one", _letter("checkpoint-0", 50 * _MODEL, REQUESTER, paths.EVERY_SITE), *long),
        ),
    )


def _topics() -> Refused:
    model = _letter("checkpoint-1", _MODEL, REQUESTER, paths.EVERY_SITE)
    return Refused(
        Words(
            "letters-of-made-up-topics",
            Party.SITE,
            "leaves letters about rounds and models that are not there, or to whom nobody writes so",
            "letters that the study calls for now, from whom it expects them",
        ),
        {"servers.routes.mail.require_announced": passes},
        (
            *(Row(f"topic {topic}", _letter(topic, _NOTICE), 0, None) for topic in _TOPICS),
            Row("a model that no round made", model, 409, E.WRONG_ROUND),
            Row("a welcome to it", _letter("welcome-1", 1000, REQUESTER, VICTIM), 409, E.WRONG_ROUND),
            Row("a model for one site", _letter("checkpoint-0", _MODEL, REQUESTER, VICTIM), 403, E.NOT_LISTED),
            Row("a decline of who is not listed", _letter("decline-1", _NOTICE, STRANGER), 403, E.NOT_LISTED),
        ),
    )


class Conflicts(Attack):
    """A letter under a topic that is taken, again and again with other bytes: each is refused, and recorded."""

    name = "letters-that-conflict"
    party = Party.SITE
    tries = f"sends {_CONFLICTS} other letters in place of the first, each of which a server records"
    defence = f"at most {_MOST_RECORDED} refusals are recorded of one party in one study"
    figure = "records that one site left at a server"
    without: Mapping[str, object] = {"servers.store.requests.MOST_REFUSALS": 10**6}

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                opened = pair.round()
                path = opened.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
                for number in range(1 + _CONFLICTS):
                    opened.client(EARLY).send(Side.A, "PUT", path, number.to_bytes(2, "big") * (_NOTICE // 2))
                kept = len(refusals(servers))
            finally:
                pair.close()
        return Found(kept > _MOST_RECORDED, kept)


class PiledUp(Attack):
    """A requester that writes lists for one round and none for those after it: no later list supersedes the first."""

    name = "letters-that-pile-up"
    party = Party.REQUESTER
    tries = "writes no list for the rounds after one that had lists, so that old letters stay and every view grows"
    defence = "a round that is announced takes out the letters of all rounds but the last"
    figure = "lists of an old round that wait for one site"
    without: Mapping[str, object] = {
        "servers.letters._of_rounds_before": lambda *_: [],
    }

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                for number in range(1, 1 + _ROUNDS):
                    opened = pair.round()
                    if number == 1:
                        _lists(opened)
                    opened.finish()
                waiting = len(opened.sites.view(Side.A, VICTIM).mail)
            finally:
                pair.close()
        return Found(waiting > 0, waiting)


def _lists(opened: Round) -> None:
    for site in SITES[1:]:
        path = opened.path(paths.MAIL, topic=f"weights-{opened.number}", recipient=site)
        opened.sites.me.ok(Side.A, "PUT", path, b"weights")


def floods() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return _sizes(), _topics(), Conflicts(), PiledUp()
