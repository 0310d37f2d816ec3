"""Before a study runs: identity, the state folder's lock, the outbox, and which studies a site takes up."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from client_agent.daemon import Agent, Pace, run_agent
from client_agent.learning.sampling import site_seed, training_seed
from client_agent.learning.study_file import FinishTable
from client_agent.settings import AgentSettings
from client_agent.site.connections import Site, one_agent
from client_agent.site.events import AgentEvent
from client_agent.site.identity import load_identity
from client_agent.site.journal import SiteState, StudyJournal, finish_table
from client_agent.study.outbox import create_study, outbox, waiting, withdraw
from harness.federation.processes import write_secret
from host.files import write_durably
from protocol.errors import BadSignature, ConfigurationError, StorageFull, UnknownStudy
from protocol.messages.control import (
    ListedStudy,
    RankingSpec,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    StudyIndex,
    StudyProtection,
    countersign,
    sign,
)
from protocol.roster.keyfile import dump_party_keys, dump_roster
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.federation import PARTIES, REQUESTER, ROSTER, keys, operator_keys, study, study_end


def settings(tmp_path: Path, owner: str, **changes: object) -> AgentSettings:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "roster.toml").write_text(dump_roster(PARTIES.roster))
    write_secret(tmp_path / "keys.toml", dump_party_keys(keys(owner)))
    fields = {
        "site": owner,
        "roster": tmp_path / "roster.toml",
        "keys": tmp_path / "keys.toml",
        "data": tmp_path,
        "state_dir": tmp_path / "state",
        "ca": tmp_path / "ca.pem",
    }
    return AgentSettings(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_identity_of_a_site(tmp_path: Path) -> None:
    roster, came_with = load_identity(settings(tmp_path, "c1"))
    own = present(roster.party("c1"))
    assert (roster, came_with) == (ROSTER, own.signing_key)


def test_an_identity_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key 'site': found 'c9'; the roster has the sites r0, c1"):
        load_identity(settings(tmp_path, "c1", site="c9"))
    with pytest.raises(ConfigurationError, match="holds the keys of 'c1'"):
        load_identity(settings(tmp_path, "c1", site="c2"))
    good = settings(tmp_path, "c1")
    good.roster.write_text(dump_roster(Signed(message=ROSTER, signatures=PARTIES.roster.signatures[:2])))
    with pytest.raises(BadSignature, match="the signature of 'r0' is missing"):
        load_identity(good)


def test_one_agent_for_a_state_folder(tmp_path: Path) -> None:
    own = settings(tmp_path, "c1")
    held = rf"key 'state_dir': .* in use by the agent of 'c1', process {os.getpid()} on .*, since 20.*stop that one"
    with one_agent(own), pytest.raises(ConfigurationError, match=held):
        run_agent(own, threading.Event())
    stopped = threading.Event()
    stopped.set()
    run_agent(own, stopped)


def test_a_state_folder_is_one_sites_with_one_key(tmp_path: Path) -> None:
    for name in ("c1", "c2"):
        (tmp_path / name).mkdir()
    own = settings(tmp_path / "c1", "c1")
    with Site(own):
        pass
    with Site(own):
        pass
    others = settings(tmp_path / "c2", "c2").model_copy(update={"state_dir": own.state_dir})
    with pytest.raises(ConfigurationError, match=r"belongs to site 'c1' with key \w+; this is site 'c2'.*owner\.json"):
        Site(others)
    (own.state_dir / "owner.json").unlink()
    with Site(others):
        pass


def test_a_study_does_not_choose_the_order_of_a_sites_batches(sites: dict[str, Site]) -> None:
    """A requester that knows the order knows which examples an update is of; only the site's own seed fixes it."""
    made = agent(sites["c1"], [])
    drawn = {made._training_seed(study(seed=1)) for _ in range(2)}
    assert len(drawn) == 2
    assert site_seed(1, "c1") not in drawn
    assert training_seed(1, "c1", bytes(8)) == site_seed(1, "c1")


def listed(signed: Signed[Study]) -> ListedStudy:
    return ListedStudy(name=signed.message.name, study_digest=signed.message.digest())


class FakeServer:
    """Holds signed studies."""

    def __init__(self, *studies: Signed[Study]) -> None:
        self._studies = studies
        self.fetched: list[str] = []

    def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
        found = StudyIndex(studies=tuple(listed(signed) for signed in self._studies))
        return known if known == found else found

    def study(self, name: str) -> Signed[Study]:
        self.fetched.append(name)
        for signed in self._studies:
            if signed.message.name == name:
                return signed
        raise UnknownStudy(name)

    def close(self) -> None:
        return


def serve(site: Site, a: object, b: object) -> None:
    """Put these servers in the place of the site's own."""
    for client in site.clients.values():
        client.close()
    site.clients.update({Side.A: a, Side.B: b})  # type: ignore[dict-item]


class Started(Agent):
    """Notes which studies would run."""

    started: tuple[str, ...] = ()

    def _start(self, signed: Signed[Study], make: Callable[[], object]) -> None:
        make()
        self.started = (*self.started, signed.message.name)
        self._running[signed.message.name] = ended = threading.Thread()
        ended.start()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[dict[str, Site]]:
    made = {}
    for name in (REQUESTER, "c1"):
        (tmp_path / name).mkdir()
        made[name] = Site(settings(tmp_path / name, name, studies=("unit", "other")))
    yield made
    for site in made.values():
        site.close()


def agent(site: Site, events: list[AgentEvent]) -> Started:
    return Started(site, threading.Event(), events.append, pace=Pace(look_every_s=0.01))


def signed_at(side: Side, of: Study, by: str = REQUESTER) -> Signed[Study]:
    operator = operator_keys(side)
    return countersign(sign(of, by, keys(by).signing), operator.name, operator.signing)


def offered(site: Site, at_a: Signed[Study], *at_b: Signed[Study]) -> tuple[tuple[str, ...], list[str]]:
    serve(site, FakeServer(at_a), FakeServer(*at_b))
    events: list[AgentEvent] = []
    made = agent(site, events)
    made.find_listed()
    made.find_listed()
    return made.started, [event.text for event in events]


OF, OTHER = study(), study(seed=2)


def both(of: Study) -> tuple[Signed[Study], Signed[Study]]:
    return signed_at(Side.A, of), signed_at(Side.B, of)


@pytest.mark.parametrize(
    ("shown", "started", "why"),
    [
        (both(OF), ("unit",), None),
        ((signed_at(Side.A, OF),), (), None),
        (both(OF.model_copy(update={"name": "third"})), (), None),
        (both(OF.model_copy(update={"roster_digest": "00" * 32})), (), "pins another roster"),
        ((signed_at(Side.A, OF), signed_at(Side.B, OTHER)), (), "show different studies"),
        ((signed_at(Side.A, OF), signed_at(Side.A, OF)), (), "signature of 'operator-b' is missing"),
        ((signed_at(Side.A, OF, by="c2"), signed_at(Side.B, OF)), (), "signature of 'r0' is missing"),
    ],
    ids=[
        "sound",
        "not at B yet",
        "not in the settings",
        "another roster",
        "two studies",
        "no operator",
        "no requester",
    ],
)
def test_a_study_is_taken_up_once_if_it_holds_and_else_refused_once(
    sites: dict[str, Site], shown: tuple[Signed[Study], ...], started: tuple[str, ...], why: str | None
) -> None:
    found, texts = offered(sites["c1"], *shown)
    assert found == started
    assert len(texts) == (why is not None)
    assert all(str(why) in text for text in texts)


def test_what_server_a_lists_is_what_it_shows(sites: dict[str, Site]) -> None:
    """A server that lists one study and shows another of that name is named, and nothing is taken up."""

    class TwoFaced(FakeServer):
        def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
            return StudyIndex(studies=(listed(signed_at(Side.A, study(seed=2))),))

    at_a, events = TwoFaced(signed_at(Side.A, study())), list[AgentEvent]()
    serve(sites["c1"], at_a, FakeServer())
    made = agent(sites["c1"], events)
    made.find_listed()
    assert made.started == ()
    assert "lists another one than it shows" in events[0].text


def test_a_past_study_is_not_fetched_however_often_the_agent_looks_and_starts(sites: dict[str, Site]) -> None:
    """Nine past studies cost an idle agent nothing: its journal says that they are over."""
    site = sites["c1"]
    past = [study(seed=seed).model_copy(update={"name": f"past-{seed}"}) for seed in range(9)]
    servers = {side: FakeServer(*(signed_at(side, one) for one in past)) for side in Side}
    serve(site, servers[Side.A], servers[Side.B])
    site.settings = site.settings.model_copy(update={"studies": "all"})
    for one in past:
        StudyJournal(site.settings.state_dir, one.name).write_site_state(
            SiteState(
                study_digest=one.digest(), training_seed=0, finished="completed", ended_by=study_end(one.digest())
            )
        )
    for _ in range(3):  # three starts of the agent
        made = agent(site, [])
        for _ in range(5):
            made.find_listed()
        assert made.started == ()
    assert servers[Side.A].fetched == servers[Side.B].fetched == []


class Patient(FakeServer):
    """Notes how long the agent would wait for news."""

    def __init__(self, *studies: Signed[Study]) -> None:
        super().__init__(*studies)
        self.waited_s: list[float] = []

    def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
        self.waited_s.append(0.0 if known is None else wait_s)
        return super().studies(known, wait_s)


def test_an_agent_waits_for_news_and_looks_often_only_while_server_b_lags_behind(sites: dict[str, Site]) -> None:
    at_a = Patient()
    serve(sites["c1"], at_a, FakeServer())
    made = agent(sites["c1"], [])
    for _ in range(3):
        made.find_listed()
    assert at_a.waited_s == [0.0, 30.0, 30.0]
    at_a = Patient(signed_at(Side.A, study()))
    sites["c1"].clients[Side.A] = at_a  # type: ignore[assignment]
    for _ in range(9):
        made.find_listed()
    assert at_a.waited_s == [30.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_an_agent_that_fails_while_it_looks_does_not_seem_to_wait(sites: dict[str, Site]) -> None:
    class Broken(FakeServer):
        def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
            raise RuntimeError("nobody expected this")

    serve(sites["c1"], Broken(), FakeServer())
    with pytest.raises(RuntimeError, match="nobody expected this"):
        agent(sites["c1"], []).run()


def test_a_known_name_with_another_content_is_refused(sites: dict[str, Site]) -> None:
    offered(sites["c1"], *both(OF))
    started, texts = offered(sites["c1"], *both(OTHER))
    assert started == ()
    assert "another one than the journal's" in texts[0]


def test_the_outbox_is_signed_journalled_and_emptied(sites: dict[str, Site]) -> None:
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    path = create_study(state, study(), finish=FinishTable(held_out=0.3))
    made = agent(sites[REQUESTER], events)
    made.find_own()
    assert made.started == ("unit",)
    assert not list(path.parent.iterdir())
    journal = StudyJournal(state, "unit")
    assert finish_table(journal) == FinishTable(held_out=0.3)
    signed = present(journal.read(journal.folder / "study.json", Signed[Study]))
    assert signed.signature_of(REQUESTER) is not None
    create_study(state, study(seed=2), finish=FinishTable(held_out=0.4))
    made.find_own()
    assert "choose another name" in events[0].text
    assert finish_table(journal) == FinishTable(held_out=0.3)
    assert sorted(p.name for p in outbox(state).iterdir()) == ["unit.finish", "unit.refusal.txt", "unit.refused"]


@pytest.mark.parametrize("content", [b"{}", study().model_copy(update={"roster_digest": "00" * 32}).canonical()])
def test_an_unusable_file_in_the_outbox_is_put_aside(sites: dict[str, Site], content: bytes) -> None:
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    path = create_study(state, study())
    path.write_bytes(content)
    agent(sites[REQUESTER], events).find_own()
    assert len(events) == 1
    assert sorted(p.name for p in outbox(state).iterdir()) == ["unit.refusal.txt", "unit.refused"]


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"rule": RuleSpec(name=RuleName.FEDAVG), "protection": StudyProtection.CKKS}, "allow_ckks"),
        (
            {"model": study().model.model_copy(update={"inputs": (2,), "classes": 2}), "ranking": RankingSpec()},
            "may_rank",
        ),
    ],
)
def test_the_requester_creates_no_study_that_its_own_policy_forbids(
    sites: dict[str, Site], changes: dict[str, object], clause: str
) -> None:
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    create_study(state, study().model_copy(update=changes))
    made = agent(sites[REQUESTER], events)
    made.find_own()
    assert made.started == ()
    assert events[0].text.startswith(f"policy_refusal: {clause}: ")
    assert sorted(p.name for p in outbox(state).iterdir()) == ["unit.refusal.txt", "unit.refused"]


# --- files that cannot be read or written: the agent says what to do and looks again ----------------------------------


def test_a_study_that_is_withdrawn_while_the_agent_looks_is_left_alone(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    path = create_study(state, study())
    opened = Path.open

    def withdrawn_before(self: Path, *also: Any, **more: Any) -> Any:
        if self == path:
            monkeypatch.undo()
            assert withdraw(state, "unit")
        return opened(self, *also, **more)

    monkeypatch.setattr(Path, "open", withdrawn_before)
    made = agent(sites[REQUESTER], events)
    made.find_own()
    assert (made.started, events) == ((), [])
    assert not list(path.parent.iterdir())
    create_study(state, study())
    made.find_own()
    assert made.started == ("unit",)


def test_who_cancels_a_study_that_the_agent_is_taking_finds_it_in_the_journal(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the command says that it is withdrawn, and the agent begins it."""
    state, waited = sites[REQUESTER].settings.state_dir, list[bool]()
    create_study(state, study())
    cancelling = threading.Thread(target=lambda: waited.append(withdraw(state, "unit")))
    write = StudyJournal.write

    def cancelled_meanwhile(self: StudyJournal, path: Path, message: Any) -> None:
        if path.name == "study.json":
            cancelling.start()
            cancelling.join(0.2)
            assert cancelling.is_alive()
        write(self, path, message)

    with monkeypatch.context() as patch:
        patch.setattr(StudyJournal, "write", cancelled_meanwhile)
        agent(sites[REQUESTER], []).find_own()
    cancelling.join()
    assert waited == [False]
    assert (state / "studies" / "unit" / "study.json").exists()
    assert not list(outbox(state).iterdir())


def test_a_study_that_replaces_one_being_taken_waits_in_its_place(sites: dict[str, Site]) -> None:
    """Whoever waited for the old file looks again, and finds the new one."""
    state = sites[REQUESTER].settings.state_dir
    path = create_study(state, study())
    found = list[bytes | None]()

    def look() -> None:
        with waiting(path) as content:
            found.append(content)

    looking = threading.Thread(target=look)
    with waiting(path):
        looking.start()
        looking.join(0.2)
        assert looking.is_alive()
        write_durably(path, b"another")
    looking.join()
    assert found == [b"another"]


def denied(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_a_study_that_root_put_into_the_outbox_waits_and_the_others_go_on(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``sudo moiety study create`` leaves it, for whoever runs the tests."""
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    path = create_study(state, study().model_copy(update={"name": "by-root"}))
    create_study(state, study())
    opened = Path.open

    def as_another_user(self: Path, *also: Any, **more: Any) -> Any:
        if self == path:
            raise denied(self)
        return opened(self, *also, **more)

    monkeypatch.setattr(Path, "open", as_another_user)
    made = agent(sites[REQUESTER], events)
    for _ in range(2):
        made.find_own()
    assert made.started == ("unit",)
    assert [event.study for event in events] == ["by-root"]
    assert f"{path}: Permission denied: give it to the user that this agent runs as, number {os.getuid()}" in (
        events[0].text
    )
    monkeypatch.undo()
    made.find_own()
    assert made.started == ("unit", "by-root")


def test_a_full_disk_refuses_no_study_in_the_outbox(sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch) -> None:
    state, events = sites[REQUESTER].settings.state_dir, list[AgentEvent]()
    create_study(state, study())

    def full(*_: object) -> None:
        raise StorageFull("no space left for study.json: free space on this machine's disk")

    with monkeypatch.context() as patch:
        patch.setattr(StudyJournal, "write", full)
        made = agent(sites[REQUESTER], events)
        made.find_own()
    assert [event.text for event in events] == [
        "storage_full: no space left for study.json: free space on this machine's disk"
    ]
    assert [path.name for path in outbox(state).iterdir()] == ["unit.json"]
    made.find_own()
    assert made.started == ("unit",)


def test_a_listed_study_that_a_full_disk_has_no_room_for_keeps_no_other_waiting(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study().model_copy(update={"name": "other"})
    servers = {side: FakeServer(signed_at(side, first), signed_at(side, study())) for side in Side}
    serve(sites["c1"], servers[Side.A], servers[Side.B])
    mkdir, events = Path.mkdir, list[AgentEvent]()

    def full(self: Path, *also: Any, **more: Any) -> None:
        if self.name == "other":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        mkdir(self, *also, **more)

    monkeypatch.setattr(Path, "mkdir", full)
    made = agent(sites["c1"], events)
    made.find_listed()
    assert made.started == ("unit",)
    assert [event.study for event in events] == ["other"]
    assert events[0].text.startswith("storage_full: ")
    assert events[0].text.endswith("No space left on device: free space on this machine's disk")


def test_an_agent_looks_again_after_an_error_of_its_disk(sites: dict[str, Site]) -> None:
    stop, looked = threading.Event(), list[int]()

    class DiskFails(FakeServer):
        def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
            looked.append(1)
            if len(looked) == 3:
                stop.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    serve(sites["c1"], DiskFails(), FakeServer())
    events = list[AgentEvent]()
    Agent(sites["c1"], stop, events.append, pace=Pace(look_every_s=0.01)).run()
    assert len(looked) >= 3
    assert any("Input/output error (OSError): look at this machine's disk" in event.text for event in events)


@pytest.mark.parametrize("what", ["cleared", "kept"])
def test_a_study_runs_although_its_note_of_a_problem_cannot_be_written(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The thread of a study ends by no error of the disk: it says it, and goes on where it can."""
    ran, asked, events = list[int](), list[str | None](), list[AgentEvent]()
    made = agent(sites["c1"], events)

    def stopped(_: StudyJournal, why: str | None) -> None:
        asked.append(why)
        if (asked == [None]) if what == "cleared" else (why is not None):
            raise denied(Path("stopped.txt"))

    class Participates:
        def run(self) -> None:
            ran.append(1)
            if what == "kept":
                raise ConfigurationError("key 'data': mend it")

    monkeypatch.setattr(StudyJournal, "stopped", stopped)
    monkeypatch.setattr("client_agent.daemon._FIRST_PAUSE_S", 0.01)
    made._run("unit", Participates)  # type: ignore[arg-type]
    assert ran == [1]
    assert len(events) == 1
    assert ("Permission denied" if what == "cleared" else "mend it") in events[0].text
