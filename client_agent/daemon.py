"""The agent: watches for studies and runs one thread for each, as contributor or as requester (outbound HTTPS only).

A study begins at the requester as a file in ``state_dir/outbox``; contributors find it at the servers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from client_agent.contributor.run import Contributor
from client_agent.learning.data import require_made_by_schema
from client_agent.learning.learner import Learner
from client_agent.learning.sampling import training_seed
from client_agent.net.watch import Complaints, Stopped, words_of
from client_agent.requester.run import Requester
from client_agent.settings import AgentSettings
from client_agent.site.connections import Connect, Site, one_agent, say_connected
from client_agent.site.context import SiteContext, site_learner
from client_agent.site.events import AgentEvent, EventKind, EventSink
from client_agent.site.failpoints import failpoints_of
from client_agent.site.identity import HeldRoster
from client_agent.site.journal import SiteState, StudyJournal, finish_table
from client_agent.site.notifications import Notices, Problems, ways_of
from client_agent.study.contribution import transfer_remarks
from client_agent.study.deletion import end_permits
from client_agent.study.outbox import outbox, take_from_outbox
from client_agent.study.participant import Participant
from host.audit_log import Action, AuditLog
from host.clock import SYSTEM, Clock
from host.command_line import unexpected
from host.randomness import site_randomness
from protocol.errors import AnnouncementMismatch, ConfigurationError, MoietyError, UnknownStudy
from protocol.messages.control import ListedStudy, Signed, Study, StudyIndex
from protocol.roster.chain import RosterChain, in_words
from protocol.sharing import Side

_JOIN_S = 10.0
_LOOK_AGAIN_S = 60.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 600.0
_LONG_POLL_S = 30.0
_FIRST_PATIENCE_S = 0.5
_PERMITS_EVERY_S = 3600.0
_ALL_STUDIES = ""
_log = structlog.get_logger("agent")


@dataclass(frozen=True)
class Pace:
    """``look_every_s``: least time between two looks for studies; a look waits at server A until there is news.

    ``stuck_after_s``, at the requester: a round that has closed, and of which neither server shows anything new for so
    long, ends its study. Three days outlast a weekend without an operator. Simulations say otherwise.
    """

    look_every_s: float = 1.0
    stuck_after_s: float = 259_200.0


USUAL_PACE: Final = Pace()


class Agent:
    """Finds studies and runs them until ``stop`` is set."""

    def __init__(
        self,
        site: Site,
        stop: threading.Event,
        emit: EventSink,
        make_learner: Callable[[Study, int], Learner] | None = None,
        pace: Pace = USUAL_PACE,
    ) -> None:
        self._site = site
        self._pace = pace
        self._stop = stop
        self._clock = site.clock
        self._audit = AuditLog(site.settings.state_dir, site.settings.site, site.clock.now)
        self._problems = Problems(site.settings.state_dir, site.clock.now)
        self._emit = self._problems.noting(emit)
        self._running: dict[str, threading.Thread] = {}
        self._participants: dict[str, Participant] = {}
        self._look_again_at_s: dict[str, float] = {}
        self._complaints = Complaints(self._report)
        self._failure: BaseException | None = None
        self._index: StudyIndex | None = None
        self._over: set[str] = set()
        self._patience_s = 0.0
        settings = site.settings
        self._failpoints = failpoints_of(settings.failpoint, seeded=settings.seed is not None)
        self._context = self._context_of(site, make_learner or self._torch_learner)
        _ = self._context.sums, self._context.cohorts, self._context.budget  # read once, before studies begin

    def _context_of(self, site: Site, make_learner: Callable[[Study, int], Learner]) -> SiteContext:
        settings, roster = site.settings, site.roster
        urls = tuple(operator.url or "" for operator in (roster.operator_a, roster.operator_b))
        return SiteContext(
            site=settings.site,
            keys=site.keys,
            held=HeldRoster(site.chain, settings.state_dir, self._follow_roster, self._undisturbed),
            clients=site.clients,
            randomness=site_randomness(settings.seed, settings.site, urls),
            state_dir=settings.state_dir,
            data=settings.data,
            policy=settings.policy,
            make_learner=partial(self._learner_of_fitting_data, make_learner),
            training_seed=self._training_seed,
            emit=self._emit,
            ledger=site.ledger,
            stop=self._stop,
            clock=site.clock,
            tell_people=Notices(settings.state_dir, ways_of(settings, site.ledger), site.clock.now).tell,
            asks_people=settings.approve == "manual",
            start_when=None if settings.start_when == "all" else settings.start_when,
            stuck_after_s=self._pace.stuck_after_s,
            bootstrap_samples=settings.bootstrap_samples,
            quiet=settings.quiet,
            transfer_remarks=lambda study: transfer_remarks(study, settings, site.clock.now()),
        )

    def _undisturbed(self) -> bool:
        return not any(thread.is_alive() for thread in self._running.values())

    def _follow_roster(self, chain: RosterChain) -> None:
        for side, client in self._site.clients.items():
            client.follow(chain.head.operator(side))
        said = "; ".join(in_words(chain.rosters[-2], chain.head))
        self._audit.add(Action.ROSTER, f"change {chain.number} is in force: {said}; digest {chain.head_digest}")
        self._report(_ALL_STUDIES, f"change {chain.number} of the roster is in force: {said}")

    def run(self) -> None:
        """Look for studies until stopped, each look a second or so after the one before; then let every study's
        thread end.

        Whatever a server answers, the agent looks again: a list that cannot be read, a clock that is off, a proxy in
        between are mended without it. A look may wait at the server, in a thread of its own, until there is news.
        """
        self._audit.add(Action.STARTED, f"under roster {self._site.roster.digest()}")
        self._end_permits()
        finding = threading.Thread(target=self._find, name="find studies", daemon=True)
        complain = partial(self._complaints.about, _ALL_STUDIES)
        greet = partial(say_connected, self._site, self._stop, self._emit, complain)
        greeting = threading.Thread(target=greet, name="greet servers", daemon=True)
        finding.start()
        greeting.start()
        try:
            while not self._clock.wait(self._stop, _PERMITS_EVERY_S):
                self._end_permits()
        finally:
            self._stop.set()
            for participant in tuple(self._participants.values()):
                participant.watch.wake()
            self._site.disconnect()
            for thread in (finding, greeting, *self._running.values()):
                thread.join(_JOIN_S)
            for participant in tuple(self._participants.values()):
                participant.watch.join(_JOIN_S)
        if self._failure is not None:
            raise self._failure

    def _end_permits(self) -> None:
        site, running = self._site, {name for name, thread in self._running.items() if thread.is_alive()}
        try:
            for text in end_permits(site.settings, site.roster, site.keys, running, self._clock.now):
                self._report(_ALL_STUDIES, text)
        except (MoietyError, OSError) as later:  # tried again within the hour
            self._complaints.about(_ALL_STUDIES, f"what a permit's end asks for was not done: {words_of(later)}")

    def _find(self) -> None:
        find = self.find_own if self._site.is_requester else self.find_listed
        try:
            while not self._stop.is_set():
                try:
                    find()
                    self._complaints.mended(_ALL_STUDIES)
                    self._problems.mended(_ALL_STUDIES)
                except (MoietyError, OSError) as later:  # a full disk too: the studies under way go on
                    if not self._stop.is_set():  # then the connections are closed
                        self._complaints.about(_ALL_STUDIES, words_of(later))
                self._clock.wait(self._stop, self._pace.look_every_s)
        except BaseException as failure:  # an agent that looks no more must not seem to wait
            self._failure = failure
            self._stop.set()

    # --- finding studies ---

    def find_own(self) -> None:
        """The requester's studies: new ones in the outbox, and those of the journal that have not ended."""
        for path in sorted(outbox(self._context.state_dir).glob("*.json")):
            try:
                take_from_outbox(self._context, path, self._report)
            except (MoietyError, OSError) as later:  # it waits there; the other studies go on
                self._complaints.about(path.stem, words_of(later))
        for folder in sorted((self._context.state_dir / "studies").glob("*/study.json")):
            name = folder.parent.name
            if name not in self._running:
                try:
                    self._resume(name, folder)
                except (MoietyError, OSError) as refused:  # the other studies go on
                    self._complaints.about(name, words_of(refused))

    def _resume(self, name: str, path: Path) -> None:
        journal = self._journal(name)
        signed = journal.read(path, Signed[Study])
        if signed is not None and _unfinished(journal):
            self._start(signed, partial(Requester, self._context, signed, journal))

    def find_listed(self) -> None:
        """Studies at the servers, countersigned by both, that this site takes part in.

        Server A is asked for names and digests, and answers when they are others than before.
        """
        server = self._context.clients[Side.A]
        try:
            index = server.studies(self._index, self._patience_s)
        except MoietyError:  # it may have other keys, which the other one can show
            with suppress(MoietyError):
                other = self._context.clients[Side.B]
                self._context.held.catch_up(other.studies().roster_changes, other)
            raise
        self._context.held.catch_up(index.roster_changes, server)
        if index is not self._index:
            self._index, self._patience_s = index, _FIRST_PATIENCE_S
        waiting = [listed for listed in index.studies if self._is_waiting(listed)]
        self._patience_s = min(2 * self._patience_s, _LONG_POLL_S) if waiting else _LONG_POLL_S

    def _is_waiting(self, listed: ListedStudy) -> bool:
        """Take a study up, or look again soon: True."""
        name, digest, now = listed.name, listed.study_digest, self._clock.monotonic()
        if name in self._running or name in self._over or not self._site.settings.takes_part_in(name):
            return False
        if self._look_again_at_s.get(digest, now) > now:
            return True
        try:
            self._take_up(listed)
        except UnknownStudy:
            return True  # server B does not have it yet
        except (MoietyError, OSError) as refused:  # what a server answered once must not keep a site out for good
            self._complaints.about(name, words_of(refused))
            self._look_again_at_s[digest] = now + _LOOK_AGAIN_S
            return True
        return False

    def _take_up(self, listed: ListedStudy) -> None:
        journal = self._journal(listed.name)
        known = journal.site_state()
        if known is not None and known.study_digest != listed.study_digest:
            raise AnnouncementMismatch(f"study {listed.name!r} is another one than the journal's of that name")
        if known is not None and known.over:
            self._over.add(listed.name)  # nothing is left to do for it, nor to ask the servers
            return
        signed = self._context.clients[Side.A].study(listed.name)
        if (signed.message.name, signed.message.digest()) != (listed.name, listed.study_digest):
            raise AnnouncementMismatch(f"study {listed.name!r}: the server lists another one than it shows")
        self._check_study(signed)
        if known is None:
            journal.write(journal.folder / "study.json", signed)
        self._start(signed, partial(Contributor, self._context, signed, journal))

    def _check_study(self, at_a: Signed[Study]) -> None:
        """The requester and both operators signed one study, and it pins this roster."""
        held = self._context.held
        study = held.require_signed(at_a, Side.A)
        at_b = self._context.clients[Side.B].study(study.name)
        if held.require_signed(at_b, Side.B) != study:
            raise AnnouncementMismatch(f"study {study.name!r}: the two servers show different studies")
        held.require_pinned(study)

    def _journal(self, study: str) -> StudyJournal:
        return StudyJournal(self._context.state_dir, study, self._failpoints)

    # --- running them ---

    def _start(self, signed: Signed[Study], make: Callable[[], Contributor | Requester]) -> None:
        name = signed.message.name
        thread = threading.Thread(target=self._run, args=(name, make), name=f"study {name}", daemon=True)
        self._running[name] = thread
        thread.start()

    def _run(self, name: str, make: Callable[[], Contributor | Requester]) -> None:
        """One study until it ends here; after an error that nobody expected, again from its journal, as at a restart.

        Only what a person must mend at this site, and then starts the agent anew, ends it before.
        """
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                self._journal(name).stopped(None)
                participant = make()
                self._participants[name] = participant
                participant.run()
            except Stopped:
                return
            except ConfigurationError as wrong:
                self._failed(name, words_of(wrong))
                with suppress(MoietyError, OSError):  # it was said; a full disk has no room for the note
                    self._journal(name).stopped(words_of(wrong))
                return
            except (MoietyError, OSError) as refused:
                if isinstance(refused, OSError):
                    _log.error("study_failed", site=self._context.site, study=name, problem=unexpected(refused))
                self._failed(name, f"{words_of(refused)}; tried again in {pause_s:g} s")
            except Exception as failure:
                _log.error("study_failed", site=self._context.site, study=name, problem=unexpected(failure))
                text = f"unexpected {type(failure).__name__}: see the log; the journal is kept"
                self._failed(name, f"{text}; tried again in {pause_s:g} s")
            else:
                return
            self._clock.wait(self._stop, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _failed(self, study: str, text: str) -> None:
        if not self._stop.is_set():
            self._report(study, text)

    def _report(self, study: str, text: str) -> None:
        self._emit(AgentEvent(kind=EventKind.PROBLEM, site=self._context.site, study=study, text=text))

    def _learner_of_fitting_data(self, make: Callable[[Study, int], Learner], study: Study, seed: int) -> Learner:
        require_made_by_schema(study, self._site.settings.data)
        return make(study, seed)

    def _torch_learner(self, study: Study, seed: int) -> Learner:
        settings, journal = self._site.settings, StudyJournal(self._site.settings.state_dir, study.name)
        learner = site_learner(study, settings, seed, journal.folder)
        finish = finish_table(journal)
        return learner if finish is None else learner.hold_out(finish)

    def _training_seed(self, study: Study) -> int:
        own = self._context.randomness.bytes(8, f"training order {study.digest()}")
        return training_seed(self._site.settings.seed, self._context.site, own)


def _unfinished(journal: StudyJournal) -> bool:
    state: SiteState | None = journal.site_state()
    return not journal.is_withdrawn and (state is None or not state.over)


def run_agent(
    settings: AgentSettings,
    stop: threading.Event,
    emit: EventSink = lambda event: None,
    make_learner: Callable[[Study, int], Learner] | None = None,
    connect: Connect | None = None,
    clock: Clock = SYSTEM,
    pace: Pace = USUAL_PACE,
) -> None:
    """Run one site's agent until ``stop`` is set; ``connect`` and ``clock`` are not the machine's where a test says so.

    Raises: ConfigurationError before anything starts
    """
    if make_learner is None:
        _require_training(settings)
    with one_agent(settings), Site(settings, connect, clock) as site:
        Agent(site, stop, emit, make_learner, pace).run()


def _require_training(settings: AgentSettings) -> None:
    """The data and the device are there; ConfigurationError otherwise, at the start and not in the first round."""
    if not settings.data.exists():
        raise ConfigurationError(f"key 'data': {settings.data} does not exist; put this site's training data there")
    if settings.device.startswith("cuda"):
        from client_agent.learning.flat_vector import pick_device

        pick_device(settings.device)
