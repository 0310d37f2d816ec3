"""A network that troubles a whole study: it loses, doubles, holds back, cuts, trickles and silences what passes.

Between every site and either server, and between the servers. A request's fate is drawn from a seed, from who asks whom
and from how often it did, so the same request meets the same trouble in every run, whatever else passes meanwhile. What
a study over an untroubled network comes to is known from a run beside it.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx

from client_agent.site.events import METRICS, RoundEnd, read_metrics
from client_agent.site.journal import StudyJournal
from harness.attack.attack import Attempt, Found, passes, replaced
from harness.federation.clocks import START_S
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.network import Fate, Judge, Network, Passing
from harness.federation.processes import FederationSpec
from protocol.errors import ConflictingMessage
from protocol.messages.control import Receipt, RuleSpec, Signed, Study
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.background import duties
from servers.store.records import AnswerKind, RoundRecord
from servers.store.sql import SqlStore

SITES: Final = ("requester", "c1", "c2", "c3")
NAME: Final = "troubled"
_LEAST: Final = 2
_POLICY: Final = SitePolicy(least_isolation=0.0, least_contributors=_LEAST)


@dataclass(frozen=True)
class Plan:
    """The study: how long a round waits for its sites, and how long anybody waits for the study's end (their time).

    Most of a share of so many parameters stands behind its envelope.
    """

    rule: RuleSpec = EROSION
    rounds: int = 2
    dimension: int = 2_000
    deadline_s: float = 120.0
    within_s: float = 6 * 3600.0


def federation_spec() -> FederationSpec:
    """Four sites of whom any two contributors are enough."""
    return FederationSpec("troubled", SITES[0], light_sites(SITES, _POLICY), seed=5)


def federation(folder: Path, network: Network | None) -> InMemoryFederation:
    return InMemoryFederation(federation_spec(), folder, light_learner, network=network)


def study_of(running: InMemoryFederation, plan: Plan) -> Study:
    study = light_study(running.parties, NAME, plan.rule, rounds=plan.rounds, dimension=plan.dimension)
    parameters = study.parameters.model_copy(update={"least_contributors": _LEAST})
    return study.model_copy(update={"parameters": parameters, "round_deadline_s": plan.deadline_s})


@dataclass(frozen=True)
class Left:
    """``ends``: why the study ended, by site; ``took_part``: of each round, as the requester has it, nobody of one
    that was skipped; ``models``: by site; ``broken``: promises of the servers that do not hold, in words."""

    ends: dict[str, str]
    models: dict[str, bytes]
    took_part: tuple[tuple[str, ...], ...]
    broken: tuple[str, ...]

    @property
    def everybody(self) -> bool:
        """All sites were in every round's sum."""
        return all(sites == SITES for sites in self.took_part)


def ended(running: InMemoryFederation, *sites: str) -> bool:
    """At these sites, all of them when none is named."""
    states = (StudyJournal(running.state(site), NAME).site_state() for site in sites or SITES)
    return all(state is not None and state.finished is not None for state in states)


def left(running: InMemoryFederation) -> Left:
    """Read the state now; sites without a model have none in it."""
    journals = {site: StudyJournal(running.state(site), NAME) for site in SITES}
    states = {site: own.site_state() for site, own in journals.items()}
    records = read_metrics(journals[SITES[0]].folder / METRICS)
    return Left(
        ends={site: state.finished for site, state in states.items() if state is not None and state.finished},
        models={
            site: journals[site].load_model(state.model_version).tobytes()
            for site, state in states.items()
            if state is not None and state.model_version is not None
        },
        took_part=tuple(record.took_part if record.state is RoundEnd.RELEASED else () for record in records),
        broken=tuple(_broken(running, journals)),
    )


def _broken(running: InMemoryFederation, journals: dict[str, StudyJournal]) -> Iterator[str]:
    stores = {side: store_of(running, side) for side in Side}
    known = [one.digest for store in stores.values() for one in store.studies() if one.name == NAME]
    if len(known) < len(stores):
        return
    a, b = (_attempts(store, digest) for store, digest in zip(stores.values(), known, strict=True))
    for key in sorted(a.keys() & b.keys(), key=str):
        yield from _apart(key, a[key], b[key])
    for site, own in journals.items():
        yield from _lost(site, own, stores, known[0])


def _apart(key: RoundKey, a: RoundRecord, b: RoundRecord) -> Iterator[str]:
    """Both servers sign one set and release one, or end the attempt without a sum."""
    if a.agreed_set and b.agreed_set and a.agreed_set.message != b.agreed_set.message:
        yield f"two agreed sets: {key.label}"
    if a.release_set and b.release_set and a.release_set.message != b.release_set.message:
        yield f"two release sets: {key.label}"
    if (a.outcome is None) is not (b.outcome is None) and a.outcome is not None and b.release_set is not None:
        yield f"two ends: {key.label}, released at one server and ended without a sum at the other"


def _lost(site: str, own: StudyJournal, stores: dict[Side, SqlStore], digest: str) -> Iterator[str]:
    """Find what a site has a receipt for and a server does not hold, to the byte."""
    for path in sorted(own.folder.glob("rounds/*/attempt-*/receipt-*.json")):
        receipt = Signed[Receipt].model_validate_json(path.read_bytes()).message
        key = RoundKey(digest, receipt.round, receipt.attempt)
        held = {one.site: one.body_digest for one in stores[receipt.side].contributions(key)}
        if held.get(site) != receipt.body_digest:
            yield f"lost: {key.label}, what server {receipt.side.value} gave {site} a receipt for"


def store_of(running: InMemoryFederation, side: Side) -> SqlStore:
    """A server's own; only read it while nobody works."""
    store: SqlStore = running.servers.apps[side].state.server.store
    return store


def _attempts(store: SqlStore, digest: str) -> dict[RoundKey, RoundRecord]:
    found = {}
    last = store.current_round(digest)
    for number in range(1, (last.key.round if last else 0) + 1):
        latest = store.latest_attempt(digest, number)
        for attempt in range(1, (latest.key.attempt if latest else 0) + 1):
            record = store.round(RoundKey(digest, number, attempt))
            if record is not None:
                found[record.key] = record
    return found


Draw = Callable[[random.Random, Passing], Fate]


class Troubled(Judge):
    """``draw`` says what becomes of a request, over its own random numbers; ``injected`` counts what did, by kind.

    ``steps`` are all requests.
    """

    def __init__(self, draw: Draw, seed: int) -> None:
        super().__init__()
        self._draw, self._seed = draw, seed
        self.injected: Counter[str] = Counter()
        self.steps = 0

    def fate(self, passing: Passing) -> Fate:
        place = f"{self._seed} {passing.sender} {passing.to} {passing.number}"
        drawn = random.Random(place)  # noqa: S311  # accidents that a seed repeats are no secret
        fate = self._draw(drawn, passing)
        self.injected.update(kinds(fate))
        self.steps += 1
        return fate


def kinds(fate: Fate) -> list[str]:
    """Name what a fate does to a request."""
    found = {
        "request held": fate.held_s > 0,
        "request lost": not fate.arrives,
        "request copied": fate.again_after_s is not None,
        "request cut": fate.cut_to < 1 and not fate.breaks_off,
        "request broken off": fate.breaks_off,
        "answer held": fate.answer_held_s > 0,
        "answer lost": not fate.answer_arrives,
        "answer cut": fate.answer_cut_to < 1,
        "answer slow": fate.pause_s > 0,
        "silence": fate.silent,
    }
    return [kind for kind, there in found.items() if there]


# --- attacks ----------------------------------------------------------------------------------------------------------


_PLAN: Final = Plan()
_IMPATIENT: Final = Plan(within_s=1000.0)
"""A study that goes on ends long before; one that does not is not waited for much longer."""
_SEED: Final = 11
_VICTIM: Final = "c3"
_NEVER_S: Final = 1e9
_HELD_BACK_S: Final = 130.0
"""An agent waits 120 s for an answer."""
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


def _over_a_whole_study(
    draw: Draw,
    folder: Path,
    *,
    plan: Plan = _PLAN,
    everybody: bool = True,
    cut_off: frozenset[str] = frozenset(),
    afterwards_s: float = 0.0,
) -> Found:
    """It has reached something when a study does not end as it would have, or anything is used twice or lost.

    That is: a site without an end and its reason, another model or other sites in a sum than without trouble, servers
    that hold different sets, a share that is gone although there is a receipt, a request that is carried out twice.

    ``everybody``: all sites are in every sum although the network does this. ``cut_off``: sites that nothing reaches,
    of whom no end is asked. ``afterwards_s``: how long the servers stay when the study is over, for what comes late.
    """
    network = Troubled(draw, _SEED)
    expected = untroubled() if everybody else None
    sites = [site for site in SITES if site not in cut_off]
    with replaced(duties, "_DATABASE_LOOKED_AT_EVERY_S", 60.0), federation(folder, network) as running:
        running.hand_in(study_of(running, plan))
        running.start()
        running.comes(lambda: ended(running, *sites), plan.within_s)
        running.stop_agents()
        if afterwards_s:
            running.comes(lambda: False, afterwards_s)
        reached = [*_not_as_promised(left(running), sites, expected), *_taken(network)]
    if not network.injected:
        raise RuntimeError("the network troubled nothing")
    note = ", ".join(f"{count} {kind}" for kind, count in sorted(network.injected.items()))
    return Found(bool(reached), len(reached), "; ".join([*reached, note]))


def _not_as_promised(found: Left, sites: list[str], expected: Left | None) -> Iterator[str]:
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


def _delays(drawn: random.Random, passing: Passing) -> Fate:
    """So differently that messages overtake each other, and the halves of one site's share by most of a minute."""
    if passing.sender == _VICTIM and passing.to is Side.B:
        return Fate(held_s=drawn.uniform(20.0, 40.0))
    return Fate(held_s=drawn.uniform(0.0, 4.0), answer_held_s=drawn.uniform(0.0, 4.0))


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


# --- defences, taken out ----------------------------------------------------------------------------------------------


def _came_before(*_: object) -> NoReturn:
    raise ConflictingMessage("it came before")


def _nobody(*_: object) -> frozenset[str]:
    return frozenset()


def _attempt(draw: Draw, without: Mapping[str, object], **how: Any) -> Attempt:  # noqa: ANN401  # see the function
    return Attempt(partial(_over_a_whole_study, draw, **how), without)


ATTEMPTS: Final = {
    "network-loses-messages": _attempt(
        _loses,
        {
            "servers.rounds.contributions.same_receipt": _came_before,
            # The answer to the products, which cannot be made a second time, is forgotten.
            "servers.store.sql.SqlStore.answer": lambda store, key, kind: (
                None if kind is AnswerKind.PRODUCTS else _ANSWER(store, key, kind)
            ),
        },
    ),
    # Everything; the copy comes first, or up to a second later.
    "network-doubles-messages": _attempt(
        lambda drawn, _: Fate(held_s=drawn.uniform(0.0, 0.2), again_after_s=drawn.uniform(0.0, 1.0)),
        {"servers.store.sql.SqlStore.remember_nonce": passes},
    ),
    # One request in ten, for so long that its sender has sent it again.
    "network-holds-messages-back": _attempt(
        lambda drawn, _: Fate(held_s=_HELD_BACK_S if drawn.random() < 0.1 else 0.05),
        {"protocol.channel.signing.require_time": passes, "servers.identity.sessions.require_time": passes},
        everybody=False,
        afterwards_s=_HELD_BACK_S,
    ),
    "network-cuts-messages": _attempt(_cuts, {"client_agent.net.exchange._ALTERED": ()}),
    "network-delays-messages": _attempt(
        _delays,
        {
            "servers.rounds.contributions.awaited_sites": _nobody,
            "servers.rounds.state.awaited_sites": _nobody,
            "protocol.rounds.side_a.still_awaited": _nobody,
        },
        plan=Plan(deadline_s=300.0),
    ),
    # One request in twenty-five is never answered, and its connection stays open.
    "network-goes-silent": _attempt(
        lambda drawn, _: Fate(silent=drawn.random() < 0.04),
        {
            "servers.peer_client.httpx.Timeout": lambda *_, **__: _TIMEOUT(_NEVER_S),
            "servers.peer_client.PeerClient._longest_s": lambda *_: _NEVER_S,
        },
        plan=_IMPATIENT,
        everybody=False,
    ),
    # One answer in twenty-five comes by a sixteenth every hundred seconds: no read is given up for that.
    "network-trickles-answers": _attempt(
        lambda drawn, _: Fate(pause_s=100.0 * (drawn.random() < 0.04)),
        {"client_agent.net.answers.Answer._require_speed": passes},
        plan=_IMPATIENT,
        everybody=False,
    ),
    # From the twelfth request to a server on.
    "network-keeps-a-site-out": _attempt(
        lambda _, passing: Fate(arrives=passing.sender != _VICTIM or passing.number < 12),
        {
            "servers.rounds.contributions.RoundRecord": lambda key, state, announced, _: RoundRecord(
                key, state, announced, START_S + _NEVER_S
            )
        },
        plan=Plan(deadline_s=60.0, within_s=400.0),
        everybody=False,
        cut_off=frozenset({_VICTIM}),
    ),
}
