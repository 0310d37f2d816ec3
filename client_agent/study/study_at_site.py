"""One study at one site: its journal, its model, its records; what is done with them is elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from client_agent.learning.learner import Learner, Vector
from client_agent.learning.scores import MetricName, value_of
from client_agent.net.ledger import Totals
from client_agent.net.quiet_hours import QuietNow
from client_agent.net.watch import StudyWatch
from client_agent.site.context import SiteContext
from client_agent.site.events import METRICS, AgentEvent, EventKind, Metrics, Phase, RoundRecord
from client_agent.site.failpoints import Point
from client_agent.site.journal import FINAL_SCORES, SiteState, StudyJournal
from client_agent.site.models import SHARED_SCORES, FinishedModel, finished_model, load_finished, save_finished
from host.audit_log import Action, AuditLog
from protocol.ckks.scheme import SecretKey
from protocol.errors import MoietyError
from protocol.messages.control import Purpose, Signed, Study, StudyEnd, StudyView
from protocol.shared_model import model_part
from protocol.sharing import Side


class Stopwatch:
    """Seconds by phase since the last round's record."""

    def __init__(self) -> None:
        self._phases: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - begin

    def take(self) -> tuple[tuple[Phase, ...], float]:
        """The phases and all seconds so far; starts again."""
        phases = tuple(Phase(name=name, seconds=seconds) for name, seconds in self._phases.items())
        now = time.perf_counter()
        seconds, self._start, self._phases = now - self._start, now, {}
        return phases, seconds


class StudyAtSite:
    """State changes go to the journal before anything that depends on them leaves."""

    WAITS_FOR_NEWS: ClassVar[bool] = False
    """True where only what a contributor acts on wakes it, and not every state of a round."""

    def __init__(self, context: SiteContext, signed_study: Signed[Study], journal: StudyJournal) -> None:
        self.context = context
        self.signed_study = signed_study
        self.study = signed_study.message
        self.study_digest = self.study.digest()
        self.journal = journal
        self.watch = StudyWatch(
            self.study.name, context.clients, context.stop, self._no_view, context.clock, self.WAITS_FOR_NEWS
        )
        self.stopwatch = Stopwatch()
        self.state = journal.site_state() or self._first_state()
        self._learner: Learner | None = None
        self._kept: Vector | None = None
        self._ckks_key: SecretKey | None = None
        self._trained: tuple[int, Vector] | None = None
        if self.state.model_version is not None:
            self._kept = journal.load_kept(self.state.model_version)
        facts = finished_model(journal)
        self._finished: Vector | None = None if facts is None or facts.failed else load_finished(journal)
        self._named: set[tuple[int | None, str]] = set()
        self._metrics = Metrics(journal.folder / METRICS)
        self._audit = AuditLog(context.state_dir, context.site, context.clock.now)
        self._billed: Totals = context.ledger.totals

    @property
    def learner(self) -> Learner:
        """Loads data and model the first time; an ended study needs neither."""
        if self._learner is None:
            self._learner = self.context.make_learner(self.study, self.state.training_seed)
        return self._learner

    def follow_roster(self, views: Sequence[StudyView]) -> None:
        """Fetch what a server has of the roster beyond what is held here; what does not continue that is named once."""
        for side, view in zip(Side, views, strict=True):
            try:
                self.context.held.catch_up(view.roster_changes, self.context.clients[side])
            except MoietyError as refused:
                self.problem_once(None, refused.detail)

    def save(self, **changes: object) -> None:
        """Replace fields of the site's state, durably."""
        self.state = self.state.model_copy(update=changes)
        self.journal.write_site_state(self.state)

    def adopt_model(self, kept: Vector, version: int, **changes: object) -> None:
        """Checkpoint first, then the state that points to it. ``kept`` is the model and the moments behind it."""
        self.journal.reach(Point.BEFORE_CHECKPOINT_WRITTEN)
        self.journal.save_model(version, kept, self.study_digest, self.study.model_dimension)
        self.journal.reach(Point.AFTER_CHECKPOINT_WRITTEN)
        self.save(model_version=version, **changes)
        self.journal.reach(Point.AFTER_STATE_WRITTEN)
        self._kept = kept

    def require_kept(self) -> Vector:
        """The model with the server optimiser's moments behind it: what is checkpointed, digested and welcomed with."""
        if self._kept is None:
            raise AssertionError("no model yet: rounds begin after the welcome")
        return np.asarray(self._kept, dtype=np.float32)

    def kept_octets(self) -> memoryview:
        """The same as digests take it: little-endian float32, without a copy where the machine writes numbers so."""
        return np.ascontiguousarray(self.require_kept(), dtype="<f4").view(np.uint8).data

    def require_model(self) -> Vector:
        """The model alone."""
        return model_part(self.require_kept(), self.study.model_dimension)

    def model_in_use(self) -> Vector:
        """The finished model where there is one, else the shared one."""
        return self.require_model() if self._finished is None else self._finished

    def adopt_finished(self, facts: FinishedModel, vector: Vector | None) -> None:
        """The local finish is done; from here on that model is judged. None: there is none, as the facts say."""
        self.journal.reach(Point.BEFORE_FINISHED_WRITTEN)
        save_finished(self.journal, facts, vector)
        self.journal.reach(Point.AFTER_FINISHED_WRITTEN)
        self._finished = vector

    def record(self, record: RoundRecord) -> None:
        """One line of metrics.jsonl per round, with seconds and bytes since the last one."""
        if record.round > self.state.last_recorded_round:
            self.journal.reach(Point.BEFORE_ROUND_RECORDED)
            self.record_now(record)
            self.save(last_recorded_round=record.round)
            self.journal.reach(Point.AFTER_ROUND_RECORDED)
            self.journal.forget_rounds_before(record.round)

    def record_now(self, record: RoundRecord) -> None:
        """Write the line and tell whoever watches."""
        phases, seconds = self.stopwatch.take()
        totals, before = self.context.ledger.totals, self._billed
        self._billed = totals
        scores = self.learner.scores(self.model_in_use()) if self._trains else ()
        full = record.model_copy(
            update={
                "phases": phases,
                "seconds": seconds,
                "bytes_up": totals.socket_sent_bytes - before.socket_sent_bytes,
                "bytes_down": totals.socket_received_bytes - before.socket_received_bytes,
                "test_accuracy": value_of(scores, MetricName.ACCURACY),
                "test_scores": scores,
            }
        )
        self.note(Action.ROUND, said_of_round(full), record.round)
        self._metrics.append(full)
        self.event(EventKind.ROUND, record.round, f"round {record.round}: {record.state}", full)

    def finish(self, text: str, end: Signed[StudyEnd] | None) -> None:
        """This site's part is over; the last model's metrics with intervals go into scores.json before that is kept."""
        self._write_final_scores()
        self.note(Action.STUDY_ENDED, text)
        self.save(finished=text, ended_by=end)
        self.event(EventKind.FINISHED, None, text)

    def note(self, action: Action, detail: str = "", round_number: int | None = None) -> None:
        """An entry in the site's audit log; after a kill it may stand there twice, it is never missing."""
        self._audit.add(
            action, detail, study=self.study.name, study_digest=self.study_digest, round_number=round_number
        )

    def _write_final_scores(self) -> None:
        """Nothing about metrics keeps a study from its end."""
        if not self._trains or not self.state.last_recorded_round:
            return
        of = {FINAL_SCORES: self.model_in_use()}
        if finished_model(self.journal) is not None:
            of[SHARED_SCORES] = self.require_model()
        try:
            for name, model in of.items():
                found = self.learner.final_scores(model, self.context.bootstrap_samples)
                if found is not None:
                    self.journal.write(self.journal.folder / name, found)
        except MoietyError as failed:
            self.problem(None, f"no final metrics: {failed.detail}")

    @property
    def _trains(self) -> bool:
        """Return whether there is a model, and a study that trains it."""
        return self._kept is not None and self.study.rounds > 0

    def event(self, kind: EventKind, round_number: int | None, text: str, record: RoundRecord | None = None) -> None:
        self.context.emit(
            AgentEvent(
                kind=kind, site=self.context.site, study=self.study.name, round=round_number, text=text, record=record
            )
        )

    def _no_view(self, _: str, text: str) -> None:
        self.problem(None, text)

    def problem(self, round_number: int | None, text: str) -> None:
        self.event(EventKind.PROBLEM, round_number, text)

    def problem_once(self, round_number: int | None, text: str) -> None:
        """Notify the first time of what is found again at every look."""
        if (round_number, text) not in self._named:
            self._named.add((round_number, text))
            self.problem(round_number, text)

    def told_later(self, round_number: int | None, later: MoietyError) -> None:
        """Notify each time of what is tried again; of waiting for quiet hours, once."""
        tell = self.problem_once if isinstance(later, QuietNow) else self.problem
        tell(round_number, later.detail)

    def _first_state(self) -> SiteState:
        state = SiteState(study_digest=self.study_digest, training_seed=self.context.training_seed(self.study))
        self.journal.write_site_state(state)
        return state


def said_of_round(record: RoundRecord) -> str:
    """Log what came of a round and what left this site for it, for the audit log; no number about single sites."""
    reason = f" ({record.reason})" if record.reason else ""
    over = f" over {', '.join(record.took_part)}" if record.took_part else ""
    kind = "" if record.purpose is Purpose.UPDATE else f"{record.purpose.value} "
    return f"{kind}{record.state.value}{reason}{over}; {record.bytes_up} bytes sent, {record.bytes_down} received"
