"""One study of several rounds over a troubled network: what becomes of each request, and what the study came to.

A request's fate is drawn from a seed, from who asks whom and from how often it did. So the same request meets the same
trouble in every run, whatever else passes meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.site.events import METRICS, RoundEnd, read_metrics
from client_agent.site.journal import StudyJournal
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.network import Fate, Judge, Network, Passing
from harness.federation.processes import FederationSpec
from protocol.messages.control import Receipt, RuleSpec, Signed, Study
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.store.records import RoundRecord, StudyRecord
from servers.store.sql import SqlStore

SITES: Final = ("requester", "c1", "c2", "c3")
NAME: Final = "troubled"
ROUNDS: Final = 3
_LEAST: Final = 2
_POLICY: Final = SitePolicy(least_isolation=0.0, least_contributors=_LEAST)


@dataclass(frozen=True)
class Plan:
    """The study: how long a round waits for its sites, and how long anybody waits for the study's end (their time).

    Most of a share of so many parameters stands behind its envelope.
    """

    rule: RuleSpec = EROSION
    rounds: int = ROUNDS
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
    return all(_ended(running, site) for site in sites or SITES)


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


def _ended(running: InMemoryFederation, site: str) -> bool:
    state = StudyJournal(running.state(site), NAME).site_state()
    return state is not None and state.finished is not None


def _broken(running: InMemoryFederation, journals: dict[str, StudyJournal]) -> Iterator[str]:
    stores = {side: store_of(running, side) for side in Side}
    known = {side: _study_at(store) for side, store in stores.items()}
    a, b = known[Side.A], known[Side.B]
    if a is None or b is None:
        return
    attempts = {side: _attempts(stores[side], known_study.digest) for side, known_study in ((Side.A, a), (Side.B, b))}
    for key in sorted(attempts[Side.A].keys() & attempts[Side.B].keys(), key=str):
        yield from _apart(key, attempts[Side.A][key], attempts[Side.B][key])
    for site, own in journals.items():
        yield from _lost(site, own, stores, a.digest)


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


def _study_at(store: SqlStore) -> StudyRecord | None:
    return next((one for one in store.studies() if one.name == NAME), None)


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
        drawn = random.Random(f"{self._seed} {passing.sender} {passing.to} {passing.number}")  # noqa: S311
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
