"""One study run by a federation of real processes, read back as the same history that runs in one process leave.

Everything is read from what the processes leave behind: the agents' metrics, journals and ledgers, and the servers'
views. Nothing is assumed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

import httpx
import numpy as np
from numpy.typing import NDArray

from client_agent.network.server_client import RetryPolicy, ServerClient
from client_agent.network.transport import tls_context
from client_agent.site import events
from client_agent.site.events import read_metrics
from client_agent.site.journal import StudyJournal
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.federation.processes import RunningFederation
from protocol.errors import Unavailable, UnknownStudy
from protocol.messages.control import Study, StudyView
from protocol.sharing import Side

_KINDS: Final = {
    events.RoundEnd.RELEASED: RoundKind.RELEASED,
    events.RoundEnd.ALONE: RoundKind.ALONE,
    events.RoundEnd.CLOSED: RoundKind.MEASURED,
}
_POLL_S: Final = 0.15
_LONG_POLL_S: Final = 10.0
_STALLED_S: Final = 90.0


@dataclass(frozen=True)
class Progress:
    """The progress of a running study. ``phase`` is the current round's state, or how the last one ended."""

    study: str
    round: int
    phase: str
    records: tuple[events.RoundRecord, ...]


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
    show: Callable[[Progress], None],
    *,
    phases: bool = False,
    stalled_s: float = _STALLED_S,
) -> FederatedRun:
    """Hand ``study`` to the requester's agent and wait until every site has finished it.

    With ``phases`` server A is asked for the round's state as it changes, for a person to look at.

    Raises: Unavailable, with the ends of the logs, when a process ends or no round does for ``stalled_s``
    """
    begin = last = time.monotonic()
    done = 0
    federation.hand_in(study)
    watcher = _Watcher(federation, study.name, phases=phases)
    try:
        while not _finished(federation, study):
            federation.check()
            progress = watcher.look()
            show(progress)
            if len(progress.records) > done:
                done, last = len(progress.records), time.monotonic()
            if time.monotonic() - last > stalled_s:
                raise Unavailable(f"study {study.name!r}: no round ended in {stalled_s:g} s\n{federation.tails()}")
            time.sleep(_POLL_S)
        show(watcher.look())
    finally:
        watcher.close()
    return _read_back(federation, study, time.monotonic() - begin)


class _Watcher:
    """The requester's metrics as they grow and, for a person at a terminal, server A's view by long poll."""

    def __init__(self, federation: RunningFederation, study: str, *, phases: bool) -> None:
        self._study = study
        self._metrics = StudyJournal(federation.state(federation.spec.requester), study).folder / "metrics.jsonl"
        self._view: StudyView | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(federation,), name="watch server A", daemon=True)
        if phases:
            self._thread.start()

    def look(self) -> Progress:
        """The state now."""
        records = read_metrics(self._metrics)
        current = None if self._view is None else self._view.current
        if current is not None and self._view is not None and not self._view.state.ended:
            return Progress(self._study, current.round, current.state.value, records)
        phase = "starting" if not records else records[-1].state.value
        return Progress(self._study, records[-1].round if records else 0, phase, records)

    def close(self) -> None:
        """Stop following; a long poll under way ends by itself."""
        self._closed.set()

    def _follow(self, federation: RunningFederation) -> None:
        roster, keys = federation.parties.roster.message, federation.parties.keys_of(federation.spec.requester)
        transport = httpx.HTTPTransport(verify=tls_context(federation.ca_file))
        client = ServerClient(Side.A, roster.operator(Side.A), keys, transport, retry=RetryPolicy(attempts=1))
        while not self._closed.wait(_POLL_S):
            try:
                self._view = client.view(self._study, None if self._view is None else self._view.cursor, _LONG_POLL_S)
            except (UnknownStudy, Unavailable):
                continue  # not created yet, or the server is being restarted
            if self._view.state.ended:
                break
        client.close()


def _finished(federation: RunningFederation, study: Study) -> bool:
    """Return whether the requester is done, and every contributor that ever got the study has stopped with it."""
    states = [StudyJournal(federation.state(site.name), study.name).site_state() for site in federation.spec.sites]
    return all(state is None or state.finished is not None for state in states) and states[0] is not None


def _read_back(federation: RunningFederation, study: Study, seconds: float) -> FederatedRun:
    requester = federation.spec.requester
    contributors = tuple(site.name for site in federation.spec.sites if site.name != requester)
    records = _records(federation, requester, study.name)
    if not records:
        raise Unavailable(f"study {study.name!r} ended without a round; see {federation.folder / requester}")
    clipped = _clipped_by_round(federation, study.name)
    isolation = _isolation_by_round(federation, study.name)
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
        rounds=tuple(
            _as_history(record, requester, clipped.get(record.round, []), isolation.get(record.round, ()))
            for record in records
        ),
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


def _clipped_by_round(federation: RunningFederation, study: str) -> dict[int, list[bool]]:
    found: dict[int, list[bool]] = {}
    for site in federation.spec.sites:
        for record in _records(federation, site.name, study):
            if record.clipped is not None:
                found.setdefault(record.round, []).append(record.clipped)
    return found


def _isolation_by_round(federation: RunningFederation, study: str) -> dict[int, tuple[events.SiteValue, ...]]:
    """Return each agent's isolation for each round, the requester's first."""
    found: dict[int, list[events.SiteValue]] = {}
    for site in federation.spec.sites:
        for record in _records(federation, site.name, study):
            if record.isolation is not None:
                found.setdefault(record.round, []).append(events.SiteValue(site=site.name, value=record.isolation))
    return {number: tuple(values) for number, values in found.items()}


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
    record: events.RoundRecord, requester: str, clipped: Sequence[bool], isolation: tuple[events.SiteValue, ...]
) -> RoundRecord:
    """Turn the agent's records into a history; loss and model length, which it does not report, are NaN."""
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
        isolation=isolation,
    )
