"""A site is paused and resumed by its people; an agent says when it is connected, and how it stands without running."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import stamina
import structlog
import trustme
from typer.testing import CliRunner

from client_agent.cli.agent import app
from client_agent.net.contacts import read_notes
from client_agent.net.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.settings import load_settings
from client_agent.site.events import Absent, EventKind, RoundEnd
from client_agent.site.journal import StudyJournal
from client_agent.site.notifications import NOTICES, Sent
from client_agent.study.approval import standing
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_study
from harness.federation.processes import write_secret
from protocol.messages.control import Study, StudyState
from tests.integration.agents import FEDAVG, changed, final_model, finished, in_memory, rounds_of, run_to_end, wait_for
from tests.kit.receivers import webhook_receiver

# --- pauses -----------------------------------------------------------------------------------------------------------

SITES = ("requester", "c1", "c2", "c3")
NAME = "pauses"


def the_study(running: InMemoryFederation, rounds: int) -> Study:
    study = light_study(running.parties, NAME, FEDAVG, rounds=rounds)
    return changed(study, least_contributors=2)


def command(running: InMemoryFederation, site: str, *words: str) -> str:
    found = CliRunner().invoke(app, [*words, "--config", str(running.config(site))])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_paused_site_stays_out_says_so_and_comes_back(tmp_path: Path) -> None:
    """Paused before it begins, resumed, paused in the middle across a restart, resumed again."""
    with in_memory(tmp_path) as running:
        StudyJournal(running.state("c3"), NAME).pause("Dr. A: new scanner")
        running.start()
        running.hand_in(the_study(running, 300))
        told = "c3 (since "
        running.until("the letter", lambda: any(told in text for text in running.texts(EventKind.STUDY, "requester")))
        text = next(text for text in running.texts(EventKind.STUDY, "requester") if told in text)
        assert "it is paused by its people" in text
        assert "new scanner" not in text
        assert "it is paused by its people" in command(running, "requester", "status")
        command(running, "c3", "resume", NAME)
        running.until("rounds", lambda: any("c3" in r.took_part for r in rounds_of(running, "requester", NAME)))
        assert "is paused by its people" not in command(running, "requester", "status")
        command(running, "c3", "pause", NAME, "--person", "Dr. A", "--reason", "clinic")
        running.until("a pause", lambda: bool(_paused(running)))
        running.stop_agents("c3")
        assert "paused here: Dr. A: clinic" in command(running, "c3", "status")
        at_stop = len(_paused(running))
        running.start("c3")
        running.until("a pause after the restart", lambda: len(_paused(running)) > at_stop)
        own = rounds_of(running, "c3", NAME)
        assert own[-1].state is RoundEnd.DECLINED
        last = rounds_of(running, "requester", NAME)[-1].round
        command(running, "c3", "resume", NAME)
        running.until(
            "c3 again",
            lambda: any("c3" in r.took_part for r in rounds_of(running, "requester", NAME) if r.round > last),
        )
        running.stop_agents()
        paused = _paused(running)
        assert not any("c3" in r.took_part for r in rounds_of(running, "requester", NAME) if r.round in paused)


def _paused(running: InMemoryFederation) -> list[int]:
    """The rounds in which the requester records that c3 declined because it is paused."""
    return [
        record.round
        for record in rounds_of(running, "requester", NAME)
        for one in record.absences
        if one.site == "c3" and one.why is Absent.DECLINED and one.text.startswith("paused: ")
    ]


def test_every_agent_says_in_one_line_that_it_is_connected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The requester's too, which has no study yet; in the log with its facts."""
    with structlog.testing.capture_logs() as logged, in_memory(tmp_path) as running:
        running.start()
        running.until("all connected", lambda: all(running.texts(EventKind.CONNECTED, site) for site in SITES))
        for site in SITES:
            (text,) = running.texts(EventKind.CONNECTED, site)
            assert text == "connected to operator-a and operator-b, clocks not compared, 0 studies"
        running.stop_agents()
        connected = [one for one in logged if one["event"] == "connected"]
        assert sorted(one["site"] for one in connected) == sorted(SITES)
        assert all(one["servers"] == ["operator-a", "operator-b"] and one["studies"] == 0 for one in connected)
        found = standing(load_settings(running.config("c1")))
        assert [one.server for one in found.servers] == ["operator-a", "operator-b"]
        assert all(one.reached_at_s is not None and one.failing_since_s is None for one in found.servers)
        assert found.holder is None


def test_status_without_a_running_agent(tmp_path: Path) -> None:
    with in_memory(tmp_path) as running:
        running.start()
        run_to_end(running, the_study(running, 2))
        assert "agent runs: the agent of 'c1'" in command(running, "c1", "status")
    text = command(running, "c1", "status")
    assert "agent not running" in text
    assert f"study {NAME}: over: completed" in text
    assert "round 2 (the study has 2 of updates) released, own weight" in text
    found = json.loads(command(running, "c1", "status", "--json"))
    (study,) = found["studies"]
    assert (study["round"], study["round_state"], study["over"]) == (2, "released", True)
    assert study["isolation"] is not None
    assert found["budget"] is None


def test_a_study_that_waits_is_told_to_people_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Word goes out once; the webhook of one site answers 500, and the others train meanwhile."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    write_secret(tmp_path / "hook.key", "key")
    stamina.set_testing(True, attempts=2)
    try:
        with webhook_receiver(ca) as hook, in_memory(tmp_path / "federation") as running:
            hook.status = 500
            table = {"webhook": hook.url, "webhook_secret": str(tmp_path / "hook.key"), "ca": str(tmp_path / "ca.pem")}
            lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            config = running.config("c3")
            text = config.read_text().replace('approve = "policy"', 'approve = "manual"')
            assert 'approve = "manual"' in text
            config.write_text(f"{text}\n[notify]\n{lines}")
            asks = running.config(SITES[0])
            asks.write_text(f"start_when = 2\n{asks.read_text()}")
            running.start()
            running.hand_in(the_study(running, 3))
            running.until("the end for the others", finished(running, NAME, *SITES[:3]), within_s=20_000)
            wait_for("two calls of the webhook", lambda: len(hook.taken) == 2)
            assert {json.loads(body)["study"] for body, _ in hook.taken} == {NAME}
            wait_for("the notice", lambda: bool(read_notes(running.state("c3") / NOTICES, Sent)))
            (sent,) = read_notes(running.state("c3") / NOTICES, Sent)
            assert (sent.study, sent.delivered_at_s) == (NAME, None)
            assert "the webhook answered 500" in sent.failure
    finally:
        stamina.set_testing(False)


def test_a_requester_that_vanishes_before_its_first_round_pauses_the_study_and_can_begin_it(tmp_path: Path) -> None:
    """While it waits for sites nobody pauses anything."""
    silent_s = 90.0
    with in_memory(tmp_path) as running:
        servers = [app.state.server for app in running.servers.apps.values()]
        for server in servers:
            fewer = server.settings.limits.model_copy(update={"requester_silent_s": silent_s})
            server.settings = server.settings.model_copy(update={"limits": fewer})

        def states() -> set[StudyState]:
            return {study.state for server in servers for study in server.store.studies()}

        running.start("requester", "c1")
        running.hand_in(the_study(running, 2))
        running.until("the study", lambda: states() == {StudyState.OPEN})
        assert not running.comes(lambda: StudyState.PAUSED in states(), 3 * silent_s)
        running.stop_agents("requester")
        running.until("a pause at both", lambda: states() == {StudyState.PAUSED}, 2 * silent_s + 120.0)
        running.start("requester", "c2", "c3")
        running.until("the end", finished(running, NAME, *SITES))
        assert [record.state for record in rounds_of(running, "requester", NAME)] == [RoundEnd.RELEASED] * 2


# --- quiet hours ------------------------------------------------------------------------------------------------------

LARGE = LARGE_TRANSFER_BYTES // 8 + 1000


def quiet_until(running: InMemoryFederation, site: str, minutes: int) -> None:
    """In the site's settings: from a minute ago until so many minutes from now."""
    now = datetime.fromtimestamp(running.clock.now()).astimezone()  # this machine's time, as the settings have it
    begin, end = (f"{now + timedelta(minutes=shift):%H:%M}" for shift in (-1, minutes))
    path = running.config(site)
    path.write_text(f'quiet_hours = ["{begin}-{end}"]\n{path.read_text()}')


def test_a_large_contribution_waits_for_the_end_of_quiet_hours_or_is_declined(tmp_path: Path) -> None:
    with in_memory(tmp_path) as running:
        study = light_study(running.parties, "trial", FEDAVG, rounds=1, dimension=LARGE)
        quiet_until(running, "requester", 2)
        quiet_until(running, "c2", 4)
        quiet_until(running, "c3", 200)
        began_s = running.clock.now()
        running.start()
        study = changed(study, least_contributors=2, round_deadline_s=600.0)
        records = run_to_end(running, study, "requester", "c1", "c2")
        refused = rounds_of(running, "c3", "trial")
        said = {site: running.texts(EventKind.PROBLEM, site) for site in SITES}
        assert len({final_model(running, site, "trial") for site in ("requester", "c1", "c2")}) == 1
    assert [record.took_part for record in records] == [("requester", "c1", "c2")]
    assert records[0].time_s - began_s >= 180.0  # c2 was waited for
    assert {record.state for record in refused} == {RoundEnd.DECLINED}
    assert all("quiet hours last until" in record.reason for record in refused)
    assert any("the next round waits" in text for text in said["requester"])
    assert any("the contribution to round 1 of study 'trial' (1.1 MB) waits" in text for text in said["c2"])
    assert any("a round ends after 0.2 h: in quiet hours this site is in no sum" in text for text in said["c3"])
    absent = [one for record in records for one in record.absences if one.site == "c3"]
    assert absent
    assert all("quiet_hours" in one.text for one in absent)
