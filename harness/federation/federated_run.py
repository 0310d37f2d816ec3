"""One study run by a federation of real processes, read back as the same history that runs in one process leave.

Everything is read from what the processes leave behind: the agents' metrics, journals and ledgers, and the servers'
views. Nothing is assumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.net.ledger import LedgerEntry, read_ledger
from client_agent.site import events
from client_agent.site.events import read_metrics
from client_agent.site.journal import StudyJournal
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.federation.processes import RunningFederation
from protocol.errors import Unavailable
from protocol.messages.control import Study
from protocol.sharing import Side

_KINDS: Final = {
    events.RoundEnd.RELEASED: RoundKind.RELEASED,
    events.RoundEnd.ALONE: RoundKind.ALONE,
    events.RoundEnd.CLOSED: RoundKind.MEASURED,
}
_POLL_S: Final = 0.15
_STALLED_S: Final = 90.0


@dataclass(frozen=True)
class FederatedRun:
    """A finished study: its history, each round's seconds at the requester, and whether all sites agree."""

    history: RunHistory
    seconds: float
    round_seconds: tuple[float, ...]
    final_models_identical: bool
    records: tuple[events.RoundRecord, ...] = field(repr=False)


def run_study(
    federation: RunningFederation,
    study: Study,
    show: Callable[[tuple[events.RoundRecord, ...]], None],
    *,
    stalled_s: float = _STALLED_S,
) -> FederatedRun:
    """Follow a study to its end and read back what it left. Raises: as ``follow_study``"""
    begin = time.monotonic()
    follow_study(federation, study, show, stalled_s)
    return _read_back(federation, study, time.monotonic() - begin)


def follow_study(
    federation: RunningFederation,
    study: Study,
    show: Callable[[tuple[events.RoundRecord, ...]], None],
    stalled_s: float,
) -> tuple[events.RoundRecord, ...]:
    """Hand ``study`` to the requester's agent and wait until every site has finished it; the requester's rounds.

    ``show``: gets the requester's rounds so far, again and again.

    Raises: Unavailable, with the ends of the logs, when a process ends or no round does for ``stalled_s``
    """
    last, done = time.monotonic(), 0
    federation.hand_in(study)
    while not _finished(federation, study):
        federation.check()
        records = _records(federation, federation.spec.requester, study.name)
        show(records)
        if len(records) > done:
            done, last = len(records), time.monotonic()
        if time.monotonic() - last > stalled_s:
            raise Unavailable(f"study {study.name!r}: no round ended in {stalled_s:g} s\n{federation.tails()}")
        time.sleep(_POLL_S)
    records = _records(federation, federation.spec.requester, study.name)
    show(records)
    return records


def _finished(federation: RunningFederation, study: Study) -> bool:
    """Return whether the requester is done, and every contributor that ever got the study has stopped with it."""
    states = (StudyJournal(federation.state(site.name), study.name).site_state() for site in federation.spec.sites)
    first = next(states)  # the requester's; while it goes on nobody else's is read
    return first is not None and all(state is None or state.finished is not None for state in (first, *states))


def _read_back(federation: RunningFederation, study: Study, seconds: float) -> FederatedRun:
    requester = federation.spec.requester
    contributors = tuple(site.name for site in federation.spec.sites if site.name != requester)
    every = {site.name: _records(federation, site.name, study.name) for site in federation.spec.sites}
    records = every[requester]
    if not records:
        raise Unavailable(f"study {study.name!r} ended without a round; see {federation.folder / requester}")
    models = {site.name: _final_model(federation, site.name, study.name) for site in federation.spec.sites}
    own = models[requester]
    if own is None:
        raise Unavailable(f"study {study.name!r} left no model at the requester; see {federation.folder / requester}")
    end, reason = _end_of(records, federation, study)
    history = RunHistory(
        study=study.name,
        rule=study.rule.name,
        protection=f"{study.protection.plan.name}, real processes",
        seed=study.seed or 0,
        requester=requester,
        contributors=contributors,
        end=end,
        reason=reason,
        rounds=tuple(_as_history(record, requester, every) for record in records),
        final_model=own,
    )
    held = [model.tobytes() for model in models.values() if model is not None]
    return FederatedRun(
        history=history,
        seconds=seconds,
        round_seconds=tuple(record.seconds for record in records),
        final_models_identical=len(set(held)) == 1,
        records=records,
    )


def _records(federation: RunningFederation, site: str, study: str) -> tuple[events.RoundRecord, ...]:
    return read_metrics(StudyJournal(federation.state(site), study).folder / "metrics.jsonl")


def _final_model(federation: RunningFederation, site: str, study: str) -> NDArray[np.float32] | None:
    journal = StudyJournal(federation.state(site), study)
    state = journal.site_state()
    return None if state is None or state.model_version is None else journal.load_model(state.model_version)


def _end_of(records: Sequence[events.RoundRecord], federation: RunningFederation, study: Study) -> tuple[RunEnd, str]:
    state = StudyJournal(federation.state(federation.spec.requester), study.name).site_state()
    _, _, reason = ("" if state is None else state.finished or "").partition(": ")
    if records[-1].state is events.RoundEnd.ALONE:
        return RunEnd.LOCAL_ONLY, reason
    updates = sum(record.purpose.plan.steps_model for record in records)
    return (RunEnd.COMPLETED if updates == study.rounds else RunEnd.LOCAL_OPTIMUM), reason


def _as_history(
    record: events.RoundRecord, requester: str, every: Mapping[str, Sequence[events.RoundRecord]]
) -> RoundRecord:
    """Turn the agents' records into a history; loss and model length, which they do not report, are NaN."""
    told = [(site, one) for site, records in every.items() for one in records if one.round == record.round]
    clipped = [one.clipped for _, one in told if one.clipped is not None]
    kind = _KINDS.get(record.state, RoundKind.SKIPPED)
    counted = not record.purpose.plan.steps_model and kind is RoundKind.RELEASED
    return RoundRecord(
        **record.shared(),
        round=record.round,
        kind=RoundKind.COUNTED if counted else kind,
        handed_out=record.weights,
        requester_norm=record.requester_norm or 0.0,
        took_part=tuple(site for site in record.took_part if site != requester),
        clipped_share=mean(clipped) if clipped else 0.0,
        test_accuracy=math.nan if record.test_accuracy is None else record.test_accuracy,
        test_loss=math.nan,
        model_norm=math.nan,
        test_scores=record.test_scores,
        isolation=tuple(
            events.SiteValue(site=site, value=one.isolation) for site, one in told if one.isolation is not None
        ),
    )


_CONTRIBUTION: Final = "contribution"
_OUTPUT: Final = "output"


@dataclass(frozen=True)
class Traffic:
    """Bytes of a whole federation, divided by the rounds in which contributors took part.

    ``up`` and ``down`` count every byte at the contributors' sockets: TLS, HTTP headers, polls and handshakes
    included. The ``body`` figures count the sealed shares and outputs alone. Between the servers both directions are
    counted, as bodies, correlations made ahead but not used included.
    """

    contributor_rounds: int
    parameters: int
    up_bytes: int
    down_bytes: int
    up_body_bytes: int
    down_body_bytes: int
    between_servers_bytes: int
    tls_versions: tuple[str, ...]
    lock_to_release_s: float | None

    @property
    def up_per_parameter(self) -> float:
        return self._per(self.up_bytes, self.contributor_rounds * self.parameters)

    @property
    def down_per_parameter(self) -> float:
        return self._per(self.down_bytes, self.contributor_rounds * self.parameters)

    @property
    def up_body_per_parameter(self) -> float:
        return self._per(self.up_body_bytes, self.contributor_rounds * self.parameters)

    @property
    def down_body_per_parameter(self) -> float:
        return self._per(self.down_body_bytes, self.contributor_rounds * self.parameters)

    @property
    def between_servers_per_contributor_round(self) -> float:
        return self._per(self.between_servers_bytes, self.contributor_rounds)

    @staticmethod
    def _per(total: int, count: int) -> float:
        return total / count if count else float("nan")


def measure(federation: RunningFederation, histories: Sequence[RunHistory], parameters: int) -> Traffic:
    """The traffic of everything that ``federation`` has run, which are the given histories."""
    contributors = [site.name for site in federation.spec.sites if site.name != federation.spec.requester]
    entries = [entry for name in contributors for entry in read_ledger(federation.ledger(name))]
    everybody = [*entries, *read_ledger(federation.ledger(federation.spec.requester))]
    count, seconds = (
        sum(one.value for one in federation.samples(Side.A, name) if one.labels["phase"] == "lock_to_release")
        for name in ("moiety_phase_seconds_count", "moiety_phase_seconds_sum")
    )
    between_servers = sum(one.value for one in federation.samples(Side.A, "moiety_peer_bytes_total"))
    return Traffic(
        contributor_rounds=sum(len(record.took_part) for history in histories for record in history.rounds),
        parameters=parameters,
        up_bytes=sum(entry.socket_sent_bytes for entry in entries),
        down_bytes=sum(entry.socket_received_bytes for entry in entries),
        up_body_bytes=sum(entry.body_sent_bytes for entry in _for(entries, _CONTRIBUTION)),
        down_body_bytes=sum(entry.body_received_bytes for entry in _for(entries, _OUTPUT)),
        between_servers_bytes=int(between_servers),
        tls_versions=tuple(sorted({entry.tls_version for entry in everybody if entry.tls_version})),
        lock_to_release_s=seconds / count if count else None,
    )


def _for(entries: Sequence[LedgerEntry], purpose: str) -> list[LedgerEntry]:
    return [entry for entry in entries if entry.purpose == purpose]
