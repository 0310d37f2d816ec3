"""What a study over a troubled network left: its end, its models, and whether the servers kept what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from client_agent.site.events import METRICS, RoundEnd, read_metrics
from client_agent.site.journal import StudyJournal
from harness.adversaries.troubled.study import NAME, SITES
from harness.federation.memory.federation import InMemoryFederation
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from protocol.wire.messages import Receipt, Signed
from servers.store.interface import Store
from servers.store.study_records import RoundRecord, StudyRecord


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
        """Whether all sites were in every round's sum."""
        return all(sites == SITES for sites in self.took_part)


def ended(running: InMemoryFederation, *sites: str) -> bool:
    """At these sites, all of them when none is named."""
    return all(_ended(running, site) for site in sites or SITES)


def left(running: InMemoryFederation) -> Left:
    """What is there now; sites without a model have none in it."""
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
    known = {side: _study(store) for side, store in stores.items()}
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


def _lost(site: str, own: StudyJournal, stores: dict[Side, Store], digest: str) -> Iterator[str]:
    """What a site has a receipt for is there, the same bytes."""
    for path in sorted(own.folder.glob("rounds/*/attempt-*/receipt-*.json")):
        receipt = Signed[Receipt].model_validate_json(path.read_bytes()).message
        key = RoundKey(digest, receipt.round, receipt.attempt)
        held = {one.site: one.body_digest for one in stores[receipt.side].contributions(key)}
        if held.get(site) != receipt.body_digest:
            yield f"lost: {key.label}, what server {receipt.side.value} gave {site} a receipt for"


def store_of(running: InMemoryFederation, side: Side) -> Store:
    """A server's own; only read it while nobody works."""
    store: Store = running.servers.apps[side].state.server.store
    return store


def _study(store: Store) -> StudyRecord | None:
    return next((one for one in store.studies() if one.name == NAME), None)


def _attempts(store: Store, digest: str) -> dict[RoundKey, RoundRecord]:
    found = {}
    last = store.current_round(digest)
    for number in range(1, (last.key.round if last else 0) + 1):
        latest = store.latest_attempt(digest, number)
        for attempt in range(1, (latest.key.attempt if latest else 0) + 1):
            record = store.round(RoundKey(digest, number, attempt))
            if record is not None:
                found[record.key] = record
    return found
