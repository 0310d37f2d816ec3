"""A network that troubles a whole study: it loses, doubles, holds back, cuts, trickles and silences what passes.

Between every site and either server, and between the servers. The same seed brings the same trouble to the same
request in every run; what a study over an untroubled network comes to is known from a run beside it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, NoReturn

import httpx

from harness.adversaries.attack import Attempt, Found, passes
from harness.adversaries.troubled_study import SITES, Draw, Left, Plan, Troubled, ended, federation, left, study_of
from harness.federation.memory.clocks import START_S
from harness.federation.memory.network import Fate, Passing
from protocol.errors import ConflictingMessage
from protocol.messages.control import Announcement, RoundState, Signed
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.store.records import Answer, AnswerKind
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord

_PLAN: Final = Plan(rounds=2)
_IMPATIENT: Final = Plan(rounds=2, within_s=1500.0)
"""A study that goes on ends long before; one that does not is not waited for much longer."""
_SEED: Final = 11
_VICTIM: Final = "c3"
_NEVER_S: Final = 1e9
_HELD_BACK_S: Final = 200.0
_TIMEOUT: Final = httpx.Timeout
_ANSWER: Final = SqlStore.answer


@cache
def untroubled() -> Left:
    """The end of the same study when everything arrives, once, at once; its deadlines do not matter then."""
    with tempfile.TemporaryDirectory(prefix="moiety-untroubled-") as folder, federation(Path(folder), None) as running:
        running.hand_in(study_of(running, _PLAN))
        running.start()
        running.until("the end of an untroubled study", lambda: ended(running), _PLAN.within_s)
        running.stop_agents()
        return left(running)


@dataclass(frozen=True)
class Trouble:
    """A network's doing, and the sites to which the study's end is promised all the same.

    ``everybody``: all sites are in every sum although it does. ``cut_off``: sites that nothing reaches, of whom
    no end is asked. ``afterwards_s``: how long the servers stay when the study is over, for what comes late.
    """

    draw: Draw
    plan: Plan = _PLAN
    everybody: bool = True
    cut_off: frozenset[str] = frozenset()
    afterwards_s: float = 0.0


def _over_a_whole_study(trouble: Trouble, folder: Path) -> Found:
    """It has reached something when a study does not end as it would have, or anything is used twice or lost.

    That is: a site without an end and its reason, another model or other sites in a sum than without trouble, servers
    that hold different sets, a share that is gone although there is a receipt, a request that is carried out twice.
    """
    network = Troubled(trouble.draw, _SEED)
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
    if passing.sender == "server a":
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
    if passing.length_bytes > 12_000 and passing.alike == 0:
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
    """One answer in twenty-five comes by a sixteenth every hundred seconds: no read is given up for that."""
    return Fate(pause_s=100.0) if drawn.random() < 0.04 else Fate()


# --- defences, taken out ----------------------------------------------------------------------------------------------


def _came_before(*_: object) -> NoReturn:
    raise ConflictingMessage("it came before")


def _nothing_stored(store: SqlStore, key: RoundKey, kind: AnswerKind) -> Answer | None:
    """Forget the answer to the products, which cannot be made a second time."""
    return None if kind is AnswerKind.PRODUCTS else _ANSWER(store, key, kind)


def _without_deadline(key: RoundKey, state: RoundState, announced: Signed[Announcement], _: float) -> RoundRecord:
    return RoundRecord(key, state, announced, START_S + _NEVER_S)


def _nobody(*_: object) -> frozenset[str]:
    return frozenset()


def _attempt(trouble: Trouble, without: Mapping[str, object]) -> Attempt:
    return Attempt(partial(_over_a_whole_study, trouble), without)


ATTEMPTS: Final = {
    "network-loses-messages": _attempt(
        Trouble(_loses),
        {
            "servers.rounds.collect.same_receipt": _came_before,
            "servers.store.sql.SqlStore.answer": _nothing_stored,
        },
    ),
    "network-doubles-messages": _attempt(Trouble(_doubles), {"servers.store.sql.SqlStore.remember_nonce": passes}),
    "network-holds-messages-back": _attempt(
        Trouble(_holds_back, everybody=False, afterwards_s=_HELD_BACK_S),
        {"protocol.channel.signing.require_time": passes, "servers.roster.sessions.require_time": passes},
    ),
    "network-cuts-messages": _attempt(Trouble(_cuts), {"client_agent.network.exchange._ALTERED": ()}),
    "network-delays-messages": _attempt(
        Trouble(_delays, Plan(rounds=2, deadline_s=300.0)),
        {
            "servers.rounds.collect.awaited_sites": _nobody,
            "servers.rounds.standing.awaited_sites": _nobody,
            "protocol.rounds.side_a.still_awaited": _nobody,
        },
    ),
    "network-goes-silent": _attempt(
        Trouble(_silences, _IMPATIENT, everybody=False),
        {
            "servers.http.peer_client.httpx.Timeout": lambda *_, **__: _TIMEOUT(_NEVER_S),
            "servers.http.peer_client.PeerClient._longest_s": lambda *_: _NEVER_S,
        },
    ),
    "network-trickles-answers": _attempt(
        Trouble(_trickles, _IMPATIENT, everybody=False),
        {"client_agent.network.answer.Answer._require_speed": passes},
    ),
    "network-keeps-a-site-out": _attempt(
        Trouble(
            _keeps_out,
            Plan(rounds=2, deadline_s=60.0, within_s=400.0),
            everybody=False,
            cut_off=frozenset({_VICTIM}),
        ),
        {"servers.rounds.collect.RoundRecord": _without_deadline},
    ),
}
