"""An agent that cannot read or write a file while it looks for studies says what to do, and looks again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from client_agent.daemon import Agent, Pace
from client_agent.site.connections import Site
from client_agent.site.events import AgentEvent
from client_agent.site.journal import StudyJournal
from client_agent.study.outbox import create_study, outbox, waiting, withdraw
from host.files import write_durably
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import StudyIndex
from protocol.sharing import Side
from tests.unit.client_agent.federation import REQUESTER, study
from tests.unit.client_agent.test_daemon import FakeServer, agent, serve, signed_at, sites

assert sites  # a fixture of that module


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
    both = {side: FakeServer(signed_at(side, first), signed_at(side, study())) for side in Side}
    serve(sites["c1"], both[Side.A], both[Side.B])
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
