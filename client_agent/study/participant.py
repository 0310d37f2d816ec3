"""The common part of requester and contributors: train, contribute, apply a released average, keep records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryFile
from typing import BinaryIO, ClassVar, Final, TypeVar

import numpy as np

from client_agent.learning.learner import Learner, Vector
from client_agent.learning.scores import MetricName, value_of
from client_agent.net.exchange import pause_after
from client_agent.net.ledger import Totals
from client_agent.net.quiet_hours import QuietNow
from client_agent.net.watch import Stopped, StudyWatch
from client_agent.site.context import SiteContext, settle_sum
from client_agent.site.events import METRICS, AgentEvent, EventKind, Phase, RoundEnd, RoundRecord, append_record
from client_agent.site.failpoints import Point
from client_agent.site.journal import (
    FINAL_SCORES,
    SHARED_SCORES,
    FinishedModel,
    SiteState,
    StudyJournal,
    finished_model,
    load_finished,
    save_finished,
)
from client_agent.site.letters import CountedClasses
from client_agent.study.contribution import (
    EncodedFile,
    EncodedUpdate,
    encoded_path,
    journal_encoded,
    make_contribution,
    send_contribution,
)
from client_agent.study.privacy_spending import spend
from client_agent.study.release import Outputs, ShownEnds, shown_ends
from client_agent.study.results import (
    SUMMARY_FILE,
    asked_of_classes,
    asked_of_columns,
    encode_summary,
    model_vector,
    site_columns,
    summary_of,
)
from host.audit_log import Action, AuditLog
from host.files import MemoryFile, write_durably
from protocol.arithmetic.fixed_point import Layers, clip, encode
from protocol.ckks.scheme import SecretKey
from protocol.errors import (
    AggregateOutOfBounds,
    AnnouncementMismatch,
    MoietyError,
    ProtocolViolation,
    RosterUnknown,
    SumAltered,
    Unavailable,
)
from protocol.messages.control import (
    Announcement,
    Message,
    OutputHeader,
    Party,
    Purpose,
    Signed,
    Study,
    StudyEnd,
    StudyView,
    WeightList,
    sign,
)
from protocol.policy.memory import SiteMemory, remember_left_out, remember_release
from protocol.protection.ckks import derive_key, key_id_in, require_scheme
from protocol.protection.interface import AtSite, Encoded, UnderKey
from protocol.protection.registry import protection_of
from protocol.protection.shares import encode_counts, encode_vector
from protocol.rounds.evidence import PastRelease
from protocol.rules.fedavg import class_weight, sample_weight
from protocol.shared_model import first_model, initial_state, model_part
from protocol.sharing import Side, split
from protocol.summary.protection import Question

T = TypeVar("T")
M = TypeVar("M", bound=Message)
RETRY_S: Final = 0.5
ENCODED_RECORD: Final = "encoded.json"
NOISED_UPDATE: Final = "noised.f32"


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


class Participant:
    """One site in one study, as a contributor or the requester.

    State changes go to the journal before anything that depends on them leaves.
    """

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

    def ends(self, views: tuple[StudyView, StudyView]) -> ShownEnds:
        """The ends of the study in both views; a forged one is named once."""
        shown = shown_ends(views, self.context.roster, self.study_digest)
        for forged in shown.refused:
            self.problem_once(None, forged.detail)
        return shown

    def save(self, **changes: object) -> None:
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

    def round_record(self, round_number: int, state: RoundEnd, **fields: object) -> RoundRecord:
        """A record of a round here, now and with the model that this site has unless ``fields`` say otherwise."""
        known = {
            "time_s": self.context.clock.now(),
            "study": self.study.name,
            "site": self.context.site,
            "round": round_number,
            "state": state,
            "model_version": self.state.model_version or 0,
        }
        return RoundRecord.model_validate(known | fields)

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
        append_record(self.journal.folder / METRICS, full)
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

    def retried(self, call: Callable[[], T]) -> T:
        """Repeat while a server cannot be reached, or lacks a link of the roster.

        Raises: Stopped; what the server refuses with
        """
        while True:
            try:
                return call()
            except (Unavailable, RosterUnknown) as later:
                self.told_later(None, later)
                if self.context.pause(pause_after(later, RETRY_S)):
                    raise Stopped from None

    def told_later(self, round_number: int | None, later: MoietyError) -> None:
        """Notify each time of what is tried again; of waiting for quiet hours, once."""
        tell = self.problem_once if isinstance(later, QuietNow) else self.problem
        tell(round_number, later.detail)

    def _first_state(self) -> SiteState:
        state = SiteState(study_digest=self.study_digest, training_seed=self.context.training_seed(self.study))
        self.journal.write_site_state(state)
        return state

    # --- what the rule and the round need ---

    def prepare(self) -> None:
        """Load data, model and compiled kernels now, not in the middle of a round. Raises: ConfigurationError"""
        clip(np.ones(1, dtype=np.float32), self.study.parameters.clip_norm)
        encode(np.ones(1, dtype=np.float32), self.study.parameters, bytes(32))
        split(np.zeros(1, dtype=np.uint64), bytes(32))
        require_scheme(self.study)
        if self.study.summary is not None:
            site_columns(self.study, self.context.data)
        if self.study.rounds:
            self.learner.prepare()

    @property
    def at(self) -> AtSite:
        """This site in its study, as encoding and opening take it. Raises: as :meth:`ckks_key`"""
        key, under = self.ckks_key(), None
        if key is not None:
            under = UnderKey(key, lambda: closing(MemoryFile()), self._spool)
        return AtSite(self.study, self.context.site, self.context.roster, under)

    def _spool(self) -> AbstractContextManager[BinaryIO]:
        return TemporaryFile(dir=self.journal.folder)  # whoever asks for it closes it

    @property
    def layers(self) -> Layers:
        """Name and number of coordinates of each shared layer."""
        return AtSite(self.study, self.context.site, self.context.roster).layers

    @property
    def requester_party(self) -> Party:
        roster = self.context.roster
        return next(party for party in roster.sites if party.name == roster.requester)

    @property
    def contributors(self) -> tuple[str, ...]:
        """The roster's contributors, by name and in its order."""
        return tuple(party.name for party in self.context.roster.contributors)

    def signed(self, message: M) -> Signed[M]:
        """A message with this site's signature."""
        return sign(message, self.context.site, self.context.keys.signing)

    def first_kept(self) -> Vector:
        """Version 0 as this site derives it, with the server optimiser's first moments behind it."""
        return initial_state(first_model(self.study), self.study.rule)

    def ckks_key(self) -> SecretKey | None:
        """The key under which sites encrypt; None in a study of shares. Raises: AnnouncementMismatch before it came"""
        if self._ckks_key is None and self.study.protection.plan.keyed:
            self._ckks_key = derive_key(self.state.ckks_key_seed, self.study_digest)
        return self._ckks_key

    def ckks_key_id(self, purpose: Purpose) -> str | None:
        """The public id of that key, in rounds that travel under it."""
        return key_id_in(purpose, self.study, self.ckks_key())

    # --- what the rule has a site weigh itself with ---

    def update_number(self, round_number: int, model_version: int) -> int:
        """Return the number of a round among the study's updates: ranking and class counts come before the first one.

        Where updates are measured in between, the sums that led to the round's model count.

        Rankings and summaries come first, so there were no more of them than lie before the first other round that was
        announced to this site. A site that was away then counts as many as there can have been.
        """
        if self.study.last_round(Purpose.MEASURE):
            return model_version + 1
        if self.state.counted is not None:
            return round_number - self.state.counted.round
        other = self.state.ranked_before or round_number
        first = max(self.study.last_round(purpose) for purpose in Purpose if purpose.plan.dispensable)
        return round_number - min(first, other - 1)

    def saw(self, announcement: Announcement) -> None:
        """Remember the first round that is no ranking and no summary; both servers signed its announcement."""
        neither = self.study.ranking is None and self.study.summary is None
        if not (neither or self.state.ranked_before is not None or announcement.purpose.plan.dispensable):
            self.save(ranked_before=announcement.round)

    def own_weight(self) -> float | None:
        """The weight that this site gives itself; None where the list's weights count.

        Raises: UnusableUpdate, ConfigurationError when the counts allow no weight
        """
        rule, grid = self.study.rule, self.study.parameters.weight_grid
        if not rule.name.self_weighted:
            return None
        if not rule.name.counts_classes:
            declared = max(
                party.samples or 1 for party in self.context.held.chain.rosters[0].sites
            )  # as the study pins it
            return sample_weight(self.learner.sample_count(), rule.largest_count or declared, grid)
        if self.state.counted is None:
            raise AnnouncementMismatch("an update was announced before this site learned the class counts' sum")
        return class_weight(self.learner.class_counts(), self.state.counted.totals, grid)

    def weight_in(self, announcement: Announcement) -> float | None:
        """This site's own weight in one round; in a round of class counts or of the ranking no site has any."""
        return self.own_weight() if announcement.purpose.plan.steps_model else None

    # --- a round ---

    def encode(self, announcement: Announcement, numerator: int) -> EncodedUpdate:
        """The round's update, class counts or linear model, encoded in the journal; trained only the first time.

        Raises: UnusableUpdate, which names the layer
        """
        folder = self.journal.round_folder(announcement.round)
        into = encoded_path(self.journal, self.study, announcement)
        known = self.journal.read(folder / ENCODED_RECORD, EncodedUpdate)
        if known is not None and into.exists():  # a power cut can leave the record alone: nothing rests on it yet
            return known
        grid, own = self.study.parameters.weight_grid, self.weight_in(announcement)
        weight = numerator / grid if own is None else own
        ways: dict[Purpose, Callable[[Announcement], Encoded]] = {
            Purpose.COUNTS: lambda _: encode_counts(self.learner.class_counts(), self.study.parameters),
            Purpose.SUMMARY: self._encode_summary,
            Purpose.RANKING: self._encode_model,
            Purpose.MEASURE: partial(self._encode_update, weight=weight),
            Purpose.UPDATE: partial(self._encode_update, weight=weight),
        }
        made = ways[announcement.purpose](announcement)
        with self.stopwatch.phase("encoding"):
            encoded = journal_encoded(made, into, weight, grid)
        self.journal.write(folder / ENCODED_RECORD, encoded, (Point.BEFORE_UPDATE_ENCODED, Point.AFTER_UPDATE_ENCODED))
        return encoded

    def questions(self, purpose: Purpose) -> tuple[Question, ...]:
        """The questions of class counts or of a summary to this site's data. Raises: ConfigurationError"""
        context, key = self.context, self.context.cohorts.rounding_key()
        if purpose is Purpose.COUNTS:
            return (asked_of_classes(self.study, context.data, self.learner.class_counts(), key),)
        return asked_of_columns(self.study, context.data, context.policy, key)

    def _encode_summary(self, announcement: Announcement) -> Encoded:
        context = self.context
        columns = site_columns(self.study, context.data)
        return encode_summary(self.study, columns, context.policy, context.cohorts.rounding_key())

    def _encode_model(self, announcement: Announcement) -> Encoded:
        """This site's vector of a ranking; the requester, which ranks, puts in zeros. Raises: UnusableUpdate"""
        parameters = self.study.parameters_in(Purpose.RANKING)
        vector = np.zeros(parameters.dimension)
        if self.context.site != self.context.roster.requester:
            with self.stopwatch.phase("training"):
                vector = model_vector(self.learner, self.study, announcement.round)
        return encode_vector(vector, parameters, self._rounding_seed(announcement))

    def _encode_update(self, announcement: Announcement, weight: float) -> Encoded:
        update, self._trained = self.trained(announcement.round), None
        with self.stopwatch.phase("encoding"):
            protection, seed = protection_of(announcement), self._rounding_seed(announcement)
            return protection.encode(self.at, announcement, update, weight, seed)

    def _rounding_seed(self, announcement: Announcement) -> bytes:
        return self.context.randomness.bytes(32, f"rounding {self.study_digest} round {announcement.round}")

    def trained(self, round_number: int) -> Vector:
        """This site's update of a round, before clipping; kept until it is encoded, and trained again after a crash."""
        if self._trained is None or self._trained[0] != round_number:
            with self.stopwatch.phase("training"):
                self._trained = (round_number, self._update(round_number))
        return self._trained[1]

    def _update(self, round_number: int) -> Vector:
        """In a study with noise the one update that a round has, whatever happens: spent for, then kept in the journal.

        Raises: as client_agent.study.privacy_spending.spend
        """
        if self.study.record_noise is None:
            return self.learner.update(self.require_model(), round_number)
        kept = self.journal.round_folder(round_number) / NOISED_UPDATE
        if not kept.exists():
            self.journal.reach(Point.BEFORE_BUDGET_SPENT)
            spend(self.context, self.study, self.learner.sample_count(), round_number)
            self.journal.reach(Point.AFTER_BUDGET_SPENT)
            write_durably(kept, self.learner.update(self.require_model(), round_number).astype("<f4").tobytes())
            self.journal.reach(Point.AFTER_UPDATE_NOISED)
        return np.frombuffer(kept.read_bytes(), "<f4").astype(np.float32)

    def encoded_file(self, announcement: Announcement) -> EncodedFile:
        """The round's encoded vector, in the journal."""
        length = self.study.parameters_in(announcement.purpose).dimension
        return EncodedFile(encoded_path(self.journal, self.study, announcement), length)

    def encoded_at(self, round_number: int, name: str, length: int) -> EncodedFile:
        """Another encoded vector of a round, by its file's name."""
        return EncodedFile(self.journal.round_folder(round_number) / name, length)

    def contribute(self, announcement: Announcement, attempt: int, weight_list: WeightList) -> None:
        """Share the encoded update; resends journalled bytes. Raises: what the servers refuse with; Unavailable"""
        randomness, seed = self.context.randomness, weight_list.tag_seed
        with self.stopwatch.phase("sharing"):
            at = replace(self.at, roster=self.context.held.of(announcement))
            record = make_contribution(at, announcement, attempt, randomness, self.journal, seed)
        with self.stopwatch.phase("upload"):
            send_contribution(
                record, self.at, self.study_digest, self.context.clients, self.journal, self.context.clock
            )

    def has_taken(self, announcement: Announcement) -> bool:
        """Return whether a release of this round was applied before this process began."""
        if announcement.purpose.plan.of_data:
            taken = self.state.counted if announcement.purpose is Purpose.COUNTS else self.state.summarised
            return taken is not None
        return self.state.model_version != announcement.model_version

    def take_release(self, past: PastRelease) -> RoundEnd:
        """Open the average and step the model, or class counts, or a summary; a broken bound leaves all as it was.

        The memory of the release is written together with what it changes, so that a restart does neither twice.
        Raises: Unavailable, UnknownResource while a server has no output yet; evidence that does not hold
        """
        memory, number = self.remembered(self.state.memory, past), past.announcement.round
        try:
            if past.announcement.purpose.plan.of_data:
                opened = self._opened_data(past)
                settle_sum(self.context, self.study_digest, past)
                self.save(memory=memory, **opened)
                return RoundEnd.RELEASED
            stepped = self._stepped(past)
        except AggregateOutOfBounds as broken:
            settle_sum(self.context, self.study_digest, past)
            found: dict[str, object] = {"memory": memory, "opened_round": number}
            if past.announcement.protection.plan.keyed:
                found["discarded"] = tuple(sorted({*self.state.discarded, number}))
            if isinstance(broken, SumAltered):
                found["altered"] = tuple(sorted({*self.state.altered, number}))
            self.save(**found)
            self.problem(number, broken.detail)
            return RoundEnd.DISCARDED
        settle_sum(self.context, self.study_digest, past)
        self.adopt_model(stepped, past.announcement.model_version + 1, memory=memory, opened_round=number)
        return RoundEnd.RELEASED

    def _stepped(self, past: PastRelease) -> Vector:
        """The kept vector after a released average. Raises: as take_release; AggregateOutOfBounds"""
        with self.stopwatch.phase("output"):
            average = self.average(past)
        self.journal.reach(Point.AFTER_OUTPUT_OPENED)
        try:
            return self.learner.apply(self.require_kept(), average)
        except ProtocolViolation as beyond:  # a server optimiser's step that no float32 holds
            raise AggregateOutOfBounds(beyond.detail) from None

    def average(self, past: PastRelease) -> Vector:
        """The released average update. Raises: as :meth:`take_release`; AggregateOutOfBounds"""
        return self._outputs().open(past)

    def _opened_data(self, past: PastRelease) -> dict[str, object]:
        """Return the state with the released class counts or summary, which is on disk by then.

        Raises: as take_release; AggregateOutOfBounds
        """
        number = past.announcement.round
        with self.stopwatch.phase("output"):
            if past.announcement.purpose is Purpose.COUNTS:
                totals = self._outputs().open_counts(past)
                found: dict[str, object] = {
                    "counted": CountedClasses(study_digest=self.study_digest, round=number, totals=totals)
                }
            else:
                sites, table = past.release_set.message.sites, self._outputs().open_summary(past)
                summary = summary_of(self.study, number, sites=sites, table=table)
                self.journal.write(self.journal.folder / SUMMARY_FILE, summary)
                found = {"summarised": number}
        self.journal.reach(Point.AFTER_OUTPUT_OPENED)
        return found

    def fetched(self, past: PastRelease, side: Side, take: Callable[[OutputHeader, Iterator[bytes]], T]) -> T:
        """Return ``take`` of a side's half of a released sum, once more. Raises: OutputGone, Unavailable"""
        return self._outputs().fetch(past, side, take)

    def _outputs(self) -> Outputs:
        context = self.context
        return Outputs(self.at, self.study_digest, context.keys.sealing, context.clients)

    def remembered(self, memory: SiteMemory, past: PastRelease) -> SiteMemory:
        """The policy's memory after a release."""
        release = past.release_set.message
        others = tuple(site for site in release.sites if site != self.context.roster.requester)
        memory = remember_release(memory, past.announcement, past.weight_list, others)
        agreed = past.agreed_set.message.sites
        return remember_left_out(
            memory, release.round, agreed, release.sites, release.failed_check, own=self.context.site
        )


def said_of_round(record: RoundRecord) -> str:
    """Log what came of a round and what left this site for it, for the audit log; no number about single sites."""
    reason = f" ({record.reason})" if record.reason else ""
    over = f" over {', '.join(record.took_part)}" if record.took_part else ""
    kind = "" if record.purpose is Purpose.UPDATE else f"{record.purpose.value} "
    return f"{kind}{record.state.value}{reason}{over}; {record.bytes_up} bytes sent, {record.bytes_down} received"
