"""A network that troubles a whole study: it loses, doubles, holds back, cuts, trickles and silences what passes.

Between every site and either server, and between the servers. The same seed brings the same trouble to the same
request in every run; what a study over an untroubled network comes to is known from a run beside it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import httpx

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.catalogue.refused import Words
from harness.adversaries.troubled_study import SITES, Draw, Left, Plan, Troubled, ended, federation, left, study_of
from harness.federation.memory.clocks import START_S
from harness.federation.memory.network import Fate, Passing
from protocol.errors import ConflictingMessage
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from protocol.wire.messages import Announcement, RoundState, Signed
from servers.store.records import Answer, AnswerKind
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord

_PLAN: Final = Plan(rounds=2)
_IMPATIENT: Final = Plan(rounds=2, within_s=1500.0)
"""A study that goes on ends long before; one that does not is not waited for much longer."""
_PATIENT: Final = Plan(rounds=2, deadline_s=300.0)
_HASTY: Final = Plan(rounds=2, deadline_s=60.0, within_s=400.0)
_SEED: Final = 11
_VICTIM: Final = "c3"
_BETWEEN_SERVERS: Final = "server a"
_SHARE_BYTES: Final = 12_000
_NEVER_S: Final = 1e9
_HELD_BACK_S: Final = 200.0
_TIMEOUT: Final = httpx.Timeout
_ANSWER: Final = SqlStore.answer


@cache
def untroubled() -> Left:
    """What the same study comes to when everything arrives, once, at once; its deadlines are of no account then."""
    with tempfile.TemporaryDirectory(prefix="moiety-untroubled-") as folder, federation(Path(folder), None) as running:
        running.hand_in(study_of(running, _PLAN))
        running.start()
        running.until("the end of an untroubled study", lambda: ended(running), _PLAN.within_s)
        running.stop_agents()
        return left(running)


@dataclass(frozen=True)
class Trouble:
    """What a network does, and to whom the study's end is promised all the same.

    ``everybody``: all sites are in every sum although it does. ``cut_off``: sites that nothing reaches, of whom
    no end is asked. ``afterwards_s``: how long the servers stay when the study is over, for what comes late.
    """

    draw: Draw
    plan: Plan = _PLAN
    everybody: bool = True
    cut_off: frozenset[str] = frozenset()
    afterwards_s: float = 0.0


class OverAWholeStudy(Attack):
    """It has reached something when a study does not end as it would have, or anything is used twice or lost.

    That is: a site without an end and its reason, another model or other sites in a sum than without trouble, servers
    that hold different sets, a share that is gone although there is a receipt, a request that is carried out twice.
    """

    figure = "ends, sums and requests that are not as they would have been"

    def __init__(self, words: Words, trouble: Trouble, without: Mapping[str, object]) -> None:
        self.name, self.party, self.tries, self.defence = words.name, words.party, words.tries, words.defence
        self.trouble, self.without = trouble, without

    def attempt(self, folder: Path) -> Found:
        trouble, network = self.trouble, Troubled(self.trouble.draw, _SEED)
        expected = untroubled() if trouble.everybody else None
        sites = [site for site in SITES if site not in trouble.cut_off]
        with federation(folder, network) as running:
            running.hand_in(study_of(running, trouble.plan))
            running.start()
            running.comes(lambda: ended(running, *sites), trouble.plan.within_s)
            running.stop_agents()
            if trouble.afterwards_s:
                running.comes(lambda: False, trouble.afterwards_s)
            reached = [*_reached(left(running), sites, expected), *_taken(network)]
        if not network.injected:
            raise RuntimeError("the network troubled nothing")
        note = ", ".join(f"{count} {kind}" for kind, count in sorted(network.injected.items()))
        return Found(bool(reached), len(reached), "; ".join([*reached, note]))


def _reached(found: Left, sites: list[str], expected: Left | None) -> Iterator[str]:
    for site in sites:
        if site not in found.ends:
            yield f"{site}: no end"
    yield from found.broken
    if expected is not None:
        models = {found.models.get(site) for site in sites}
        if found.took_part != expected.took_part:
            yield f"in the sums were {' and '.join(', '.join(one) or 'nobody' for one in found.took_part) or 'none'}"
        elif models != set(expected.models.values()):
            yield "another model"


def _taken(network: Troubled) -> Iterator[str]:
    if network.taken_twice:
        yield f"{network.taken_twice} requests carried out twice"
    if network.late_taken:
        yield f"{network.late_taken} requests carried out long after they were sent"


# --- what it does -----------------------------------------------------------------------------------------------------


def _loses(drawn: random.Random, passing: Passing) -> Fate:
    """Between the servers the first answer to everything, elsewhere one request or answer in five."""
    if passing.sender == _BETWEEN_SERVERS:
        return Fate(answer_arrives=passing.alike > 0)
    chance = drawn.random()
    return Fate(arrives=chance > 0.1, answer_arrives=not 0.1 < chance < 0.2)


def _doubles(drawn: random.Random, passing: Passing) -> Fate:
    """Everything; the copy comes first, or up to a second later."""
    return Fate(held_s=drawn.uniform(0.0, 0.2), again_after_s=drawn.uniform(0.0, 1.0))


def _delays(drawn: random.Random, passing: Passing) -> Fate:
    """So differently that messages overtake each other, and the halves of one site's share by most of a minute."""
    if passing.sender == _VICTIM and passing.to is Side.B:
        return Fate(held_s=drawn.uniform(20.0, 40.0))
    return Fate(held_s=drawn.uniform(0.0, 4.0), answer_held_s=drawn.uniform(0.0, 4.0))


def _holds_back(drawn: random.Random, passing: Passing) -> Fate:
    """One request in ten, for so long that its sender has sent it again."""
    return Fate(held_s=_HELD_BACK_S) if drawn.random() < 0.1 else Fate(held_s=0.05)


def _cuts(drawn: random.Random, passing: Passing) -> Fate:
    """Each share when it first comes; else three requests and answers in ten, or half of their connection ends."""
    if passing.length_bytes > _SHARE_BYTES and passing.alike == 0:
        return Fate(cut_to=0.9)
    kind, share = drawn.random(), drawn.random()
    if kind < 0.1:
        return Fate(cut_to=share)
    if kind < 0.2:
        return Fate(breaks_off=True, cut_to=share, answer_arrives=drawn.random() < 0.5)
    return Fate(answer_cut_to=share) if kind < 0.3 else Fate()


def _silences(drawn: random.Random, passing: Passing) -> Fate:
    """One request in twenty-five is never answered, and its connection stays open."""
    return Fate(silent=drawn.random() < 0.04)


def _keeps_out(drawn: random.Random, passing: Passing) -> Fate:
    """One site, from the twelfth request to a server on."""
    return Fate(arrives=passing.sender != _VICTIM or passing.number < 12)


def _trickles(drawn: random.Random, passing: Passing) -> Fate:
    """Of one answer in twenty-five a sixteenth comes every hundred seconds: no read is given up for that."""
    return Fate(pause_s=100.0) if drawn.random() < 0.04 else Fate()


# --- defences, taken out ----------------------------------------------------------------------------------------------


def _came_before(*_: object) -> NoReturn:
    raise ConflictingMessage("it came before")


def _nothing_stored(store: SqlStore, key: RoundKey, kind: AnswerKind) -> Answer | None:
    """Of the products, whose answer cannot be made a second time."""
    return None if kind is AnswerKind.PRODUCTS else _ANSWER(store, key, kind)


def _without_deadline(key: RoundKey, state: RoundState, announced: Signed[Announcement], _: float) -> RoundRecord:
    return RoundRecord(key, state, announced, START_S + _NEVER_S)


def whole_studies() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (*_once(), *_whole(), *_in_time(), *_without_one())


def _once() -> tuple[Attack, ...]:
    return (
        OverAWholeStudy(
            Words(
                "network-loses-messages",
                Party.NETWORK,
                "loses one request or answer in five of a whole study, and every first answer between the servers",
                "everything is sent again, and the same again gets the stored answer",
            ),
            Trouble(_loses),
            {
                "servers.rounds.collect.same_receipt": _came_before,
                "servers.store.sql.SqlStore.answer": _nothing_stored,
            },
        ),
        OverAWholeStudy(
            Words(
                "network-doubles-messages",
                Party.NETWORK,
                "brings every request of a whole study twice, the copy first or last",
                "nonces, kept as long as a signature is young enough",
            ),
            Trouble(_doubles),
            {"servers.store.sql.SqlStore.remember_nonce": passes},
        ),
    )


def _whole() -> tuple[Attack, ...]:
    return (
        OverAWholeStudy(
            Words(
                "network-holds-messages-back",
                Party.NETWORK,
                "brings one request in ten of a whole study minutes later, when it has long been sent again",
                "the age of a signature",
            ),
            Trouble(_holds_back, everybody=False, afterwards_s=_HELD_BACK_S),
            {
                "protocol.wire.channel.signing.require_time": passes,
                "servers.roster.sessions.require_time": passes,
            },
        ),
        OverAWholeStudy(
            Words(
                "network-cuts-messages",
                Party.NETWORK,
                "cuts every share when it first comes, and three in ten of a study's other requests and answers",
                "a refusal of a body that did not arrive as it left is none of what the site sent: it is sent again",
            ),
            Trouble(_cuts),
            {"client_agent.network.exchange._ALTERED": ()},
        ),
    )


def _in_time() -> tuple[Attack, ...]:
    return (
        OverAWholeStudy(
            Words(
                "network-delays-messages",
                Party.NETWORK,
                "delays a whole study's messages so that they overtake each other, and one site's halves apart",
                "a round waits for its sites, and sums what both servers hold",
            ),
            Trouble(_delays, _PATIENT),
            {
                "servers.rounds.collect.awaited_sites": lambda *_: frozenset(),
                "servers.rounds.standing.awaited_sites": lambda *_: frozenset(),
                "protocol.rounds.side_a.still_awaited": lambda *_: frozenset(),
            },
        ),
        OverAWholeStudy(
            Words(
                "network-goes-silent",
                Party.NETWORK,
                "leaves one connection in twenty-five of a whole study open and silent, between the servers too",
                "every answer is waited for so long and no longer",
            ),
            Trouble(_silences, _IMPATIENT, everybody=False),
            {
                "servers.http.peer_client.httpx.Timeout": lambda *_, **__: _TIMEOUT(_NEVER_S),
                "servers.http.peer_client.PeerClient._longest_s": lambda *_: _NEVER_S,
            },
        ),
        OverAWholeStudy(
            Words(
                "network-trickles-answers",
                Party.NETWORK,
                "lets one answer in twenty-five of a whole study come in small pieces, none of them late",
                "an answer that comes more slowly than a least speed is given up and asked for again",
            ),
            Trouble(_trickles, _IMPATIENT, everybody=False),
            {"client_agent.network.answer.Answer._require_speed": passes},
        ),
    )


def _without_one() -> tuple[Attack, ...]:
    return (
        OverAWholeStudy(
            Words(
                "network-keeps-a-site-out",
                Party.NETWORK,
                "cuts a site off both servers for the rest of a study",
                "the deadline of a round, after which it goes on without",
            ),
            Trouble(_keeps_out, _HASTY, everybody=False, cut_off=frozenset({_VICTIM})),
            {"servers.rounds.collect.RoundRecord": _without_deadline},
        ),
    )
