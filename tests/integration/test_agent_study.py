"""Whole studies: in memory (with a broken site, one that is away), from the command line, and as processes (killed)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_agent.cli.agent import app as agent_app
from client_agent.cli.study import app as study_app
from client_agent.doctor import examine_site
from client_agent.net.ledger import read_ledger
from client_agent.requester.run import Requester
from client_agent.site.events import Absent, EventKind, RoundEnd
from client_agent.site.journal import Kept, KeptModel, kept_model, load_kept
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Odd, light_learner, with_odd
from harness.federation.processes import RunningFederation, write_secret
from host.doctor import Verdict
from protocol.errors import ConfigurationError, MoietyError, UnknownStudy
from protocol.messages.control import RuleName, RuleSpec, StudyState
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from servers.doctor import examine_server
from tests.integration.agents import (
    EROSION,
    FEDAVG,
    REQUESTER,
    final_model,
    finished,
    journal,
    rounds_of,
    run_to_end,
    spec,
    study_for,
    wait_for,
)
from tests.kit.present import present
from tests.kit.processes import Federation
from tests.kit.web_proxy import TunnellingProxy, tunnelling_proxy


class BrokenInRound2(Odd):
    """The last layer turns to NaN in round 2."""

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        update = super().update(model, round_number)
        if round_number == 2:
            update[-1] = np.nan
        return update


class AtItsOptimum(Odd):
    """Nothing is left to learn in round 2."""

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        return super().update(model, round_number) * np.float32(round_number != 2)


def policies() -> dict[str, SitePolicy]:
    made = {f"c{i}": SitePolicy(least_isolation=0.0) for i in range(1, 6)}
    return {**made, "c5": SitePolicy(least_isolation=0.0, least_contributors=4)}


STUDY_TOML = """
name = "cancelled"
rounds = 3
[model]
kind = "linear"
inputs = [5]
[rule]
name = "weight_erosion"
[parameters]
clip_norm = 4.0
"""


def command(*arguments: str) -> list[str]:
    result = CliRunner().invoke(study_app, list(arguments))
    if isinstance(result.exception, MoietyError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_study_is_created_watched_and_cancelled_from_the_command_line(tmp_path: Path) -> None:
    """Over servers with sockets, which a command calls."""
    (tmp_path / "study.toml").write_text(STUDY_TOML)
    federation = Federation(tmp_path / "federation", spec(policies()), light_learner)
    try:
        federation.start_servers()
        _create_watch_and_cancel(federation, tmp_path)
    finally:
        federation.stop()


def _create_watch_and_cancel(federation: Federation, tmp_path: Path) -> None:
    config, other = str(federation.config(REQUESTER)), str(federation.config("c1"))
    with pytest.raises(ConfigurationError, match="only the requester"):
        command("create", str(tmp_path / "study.toml"), "--config", other)
    with pytest.raises(UnknownStudy):
        command("watch", "cancelled", "--config", config)
    (line,) = command("create", str(tmp_path / "study.toml"), "--config", config, "--json")
    assert json.loads(line)["dimension"] == 12
    federation.start_agents(REQUESTER)
    waiting = lambda: "waiting for 5 of 5 contributors" in federation.texts(EventKind.STUDY, REQUESTER)  # noqa: E731
    wait_for("the study at the servers", waiting)
    with pytest.raises(ConfigurationError, match="is here already"):
        command("create", str(tmp_path / "study.toml"), "--config", config)
    with pytest.raises(ConfigurationError, match="only the requester"):
        command("cancel", "cancelled", "--reason", "x", "--config", other)
    command("cancel", "cancelled", "--reason", "a test", "--config", config)
    wait_for("the end", finished(federation, "cancelled", REQUESTER))
    lines = [json.loads(line) for line in command("watch", "cancelled", "--config", config, "--json")]
    *states, outcome = lines
    assert [(entry["state"], entry["reason"]) for entry in states] == [("cancelled", "a test")]
    assert outcome == {"study": "cancelled", "federated": "not", "sums": 0, "outcome": ""}
    assert "cancelled (a test)" in "\n".join(command("watch", "cancelled", "--config", config))


def test_killed_processes_come_back(tmp_path: Path) -> None:
    """kill -9 of a site and of server B in the middle of a study: it goes on, and no share is made twice.

    A site's ledger names every purpose, and its key is in no metric. One site reaches the servers through its
    hospital's proxy alone, which wants a password.
    """
    federation = RunningFederation(
        spec({f"c{i}": SitePolicy(least_isolation=0.0) for i in range(1, 4)}, seed=None), tmp_path
    )
    with tunnelling_proxy("ward:secret") as proxy, federation_behind(federation, "c3", proxy):
        federation.hand_in(study_for(federation, "erosion", EROSION, 5))
        _require_healthy(federation, "c3")
        recorded = lambda site, count: lambda: len(rounds_of(federation, site, "erosion")) >= count  # noqa: E731
        wait_for("round 1", recorded(REQUESTER, 1))
        federation.kill("c1")
        sealed = {p: p.read_bytes() for p in journal(federation, "c1", "erosion").folder.glob("rounds/*/*/*.sealed")}
        federation.start_agent("c1")
        wait_for("round 3", recorded(REQUESTER, 3))
        federation.kill("operator-b")
        federation.start_server(Side.B)
        everybody = (REQUESTER, "c1", "c2", "c3")
        wait_for("the end", finished(federation, "erosion", *everybody), within_s=120.0)
        for path, content in sealed.items():
            assert not path.exists() or path.read_bytes() == content
        assert len({final_model(federation, site, "erosion") for site in everybody}) == 1
        records = rounds_of(federation, REQUESTER, "erosion")
        assert [r.round for r in records] == [1, 2, 3, 4, 5]
        assert records[-1].model_version == sum(r.state is RoundEnd.RELEASED for r in records)
        watched = federation.run_cli("study", "watch", "erosion", "--config", str(federation.config("c1")), "--json")
        states = [json.loads(line) for line in watched.splitlines() if "ready" in json.loads(line)]
        assert states[-1]["state"] == "completed"
        _require_ledger(federation)
        assert {line.split(" ")[1] for line in proxy.asked} == {
            federation.url(side).removeprefix("https://") for side in Side
        }
        totals = read_ledger(federation.state("c3") / "ledger.jsonl")
        assert sum(entry.socket_sent_bytes for entry in totals) <= proxy.bytes_up


def federation_behind(federation: RunningFederation, site: str, proxy: TunnellingProxy) -> RunningFederation:
    """Not started yet; the site's settings name the proxy and its password's file."""
    config, told = federation.config(site), federation.config(site).with_name("proxy.txt")
    write_secret(told, "ward:secret\n")
    config.write_text(f'proxy = "{proxy.url}"\nproxy_credentials = "{told.name}"\n{config.read_text()}')
    return federation


def _require_healthy(federation: RunningFederation, site: str) -> None:
    """As the doctor sees a site behind a proxy, and a server, while both run."""
    found = examine_site(federation.config(site)).findings
    assert [one for one in found if one.verdict is Verdict.FAILED] == []
    checks = {one.check for one in found}
    assert {"proxy", "data", "policy", "two operators", "roster and keys", "device"} <= checks
    assert len([check for check in checks if check.endswith(": this site's key")]) == 2
    of_server = examine_server(federation.config("operator-a")).findings
    assert [one for one in of_server if one.verdict is Verdict.FAILED] == []
    used = [one for one in of_server if one.check in ("port", "operations_port")]
    assert [one.verdict for one in used] == [Verdict.WARNING] * 2
    assert "peer (operator-b): clock" in {one.check for one in of_server}


def _require_ledger(federation: RunningFederation) -> None:
    entries = read_ledger(federation.state("c1") / "ledger.jsonl")
    purposes = {entry.purpose for entry in entries}
    assert {"handshake", "contribution", "output", "view", "ready", "list studies"} <= purposes
    assert {entry.tls_version for entry in entries} == {"TLSv1.3"}
    sent = [e for e in entries if e.purpose == "contribution" and e.body_sent_bytes]  # none while a server is down
    assert sent
    assert all(e.socket_sent_bytes > e.body_sent_bytes for e in sent)
    text = (journal(federation, "c1", "erosion").folder / "metrics.jsonl").read_text()
    state = present(journal(federation, "c1", "erosion").site_state())
    assert state.site_key is not None
    assert state.site_key not in text
    assert state.site_key not in repr(state)


# --- in memory: last, since a clock that nobody drives looks again and again ---------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with InMemoryFederation(spec(policies()), tmp_path_factory.mktemp("memory"), light_learner) as running:
        yield running


def test_a_study_with_a_broken_site_and_a_refusing_one(federation: InMemoryFederation) -> None:
    """c5's policy wants more contributors than the study guarantees; c4 computes NaN once; the study goes on."""
    followers = ("c1", "c2", "c3", "c4")
    with federation.agents(learner=with_odd({"c4": BrokenInRound2})):
        records = run_to_end(federation, study_for(federation, "erosion", EROSION, 3), REQUESTER, *followers)
        local = RuleSpec(name=RuleName.LOCAL)
        alone = run_to_end(federation, study_for(federation, "alone", local, 2), REQUESTER)

    assert [r.state for r in records] == [RoundEnd.RELEASED] * 3
    assert [r.took_part for r in records] == [
        (REQUESTER, "c1", "c2", "c3", "c4"),
        (REQUESTER, "c1", "c2", "c3"),
        (REQUESTER, "c1", "c2", "c3", "c4"),
    ]
    assert [r.declined for r in records] == [("c5",), ("c4",), ()]
    assert [len(r.weights) for r in records] == [5, 4, 4]
    assert all(len(r.distances) == len(r.took_part) - 1 for r in records)

    absent = [[(one.site, one.why) for one in record.absences] for record in records]
    assert absent == [
        [("c5", Absent.DECLINED)],
        [("c4", Absent.DECLINED), ("c5", Absent.GIVEN_UP)],
        [("c5", Absent.GIVEN_UP)],
    ]
    assert records[2].absences[0].text.startswith("since round 1, enough_contributors: ")

    refusal = federation.texts(EventKind.DECLINED, "c5")
    assert len(refusal) == 1
    assert "enough_contributors: 3 contributors" in refusal[0]
    assert "at least 4 are demanded" in refusal[0]
    (nan,) = federation.texts(EventKind.DECLINED, "c4")
    assert nan.startswith("unusable_update: layer '1.bias': 1 of 2 values are NaN")

    models = {final_model(federation, site, "erosion") for site in (REQUESTER, *followers)}
    assert len(models) == 1
    contributor = rounds_of(federation, "c1", "erosion")
    assert [r.state for r in contributor] == [RoundEnd.RELEASED] * 3
    assert all(not r.distances and not r.alphas for r in contributor)

    assert [r.state for r in alone] == [RoundEnd.ALONE] * 2
    assert "the rule uses no contributor" in alone[0].reason


def test_a_study_cancelled_while_it_is_created_ends_at_both_servers(
    federation: InMemoryFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line found no server that had it, and said that it is withdrawn."""
    create = Requester._create

    def cancelled_meanwhile(self: Requester) -> None:
        create(self)
        self.journal.withdraw()

    monkeypatch.setattr(Requester, "_create", cancelled_meanwhile)
    study = study_for(federation, "withdrawn", EROSION, 3)
    with federation.agents(REQUESTER):
        assert not run_to_end(federation, study, REQUESTER)
    stores = [app.state.server.store for app in federation.servers.apps.values()]
    assert [store.study(study.digest()).state for store in stores] == [StudyState.CANCELLED] * 2


def test_a_site_that_missed_rounds_applies_their_sums_by_itself(federation: InMemoryFederation) -> None:
    """c4 is away for two rounds; the next list names it, so the servers seal it the sums, and it takes part at once."""
    everybody = (REQUESTER, "c1", "c2", "c3", "c4")
    with federation.agents():
        federation.hand_in(study_for(federation, "away", FEDAVG, 6))
        federation.until("round 1", lambda: len(rounds_of(federation, "c4", "away")) >= 1)
        federation.stop_agents("c4")
        federation.until("two rounds without c4", lambda: len(rounds_of(federation, REQUESTER, "away")) >= 4)
        federation.start("c4")
        federation.until("the end", finished(federation, "away", *everybody))
    records = rounds_of(federation, REQUESTER, "away")
    released = {record.round for record in records if record.state is RoundEnd.RELEASED}
    assert len(released) >= 4
    took_part = ["c4" in record.took_part for record in records]
    assert took_part[0]
    assert not all(took_part)
    assert took_part[-1]
    assert not federation.texts(EventKind.DECLINED, "c4")
    caught_up = {record.round for record in rounds_of(federation, "c4", "away") if record.state is RoundEnd.RELEASED}
    assert caught_up == released
    assert len({final_model(federation, site, "away") for site in everybody}) == 1
    assert not any(record.distances for record in records)


@pytest.mark.parametrize(
    ("name", "odd", "told", "kept"),
    [
        ("optimum", AtItsOptimum, "completed: round 2: the requester's update is zero", "completed: round 2"),
        ("broken", BrokenInRound2, "failed: the requester's update cannot be shared", "failed: layer '1.bias': 1 of 2"),
    ],
)
def test_a_requester_with_nothing_to_share_ends_the_study(
    federation: InMemoryFederation, name: str, odd: type[Odd], told: str, kept: str
) -> None:
    """At a local optimum the study is complete; with NaN it failed, and only the requester knows where."""
    with federation.agents(learner=with_odd({REQUESTER: odd})):
        records = run_to_end(federation, study_for(federation, name, EROSION, 5), REQUESTER, "c1")
    at_contributor, at_requester = (present(journal(federation, s, name).site_state()) for s in ("c1", REQUESTER))
    assert (at_contributor.finished or "").startswith(told)
    assert (at_requester.finished or "").startswith(kept)
    assert [r.state for r in records] == [RoundEnd.RELEASED]


def test_eroded_weights_leave_the_requester_alone(federation: InMemoryFederation) -> None:
    """A heavy penalty takes all weight away: the shared part ends, everybody learns why, the requester goes on."""
    harsh = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.6, size_penalty=0.1)
    with federation.agents():
        records = run_to_end(federation, study_for(federation, "harsh", harsh, 6), REQUESTER, "c1", "c5")
    assert [r.round for r in records] == [1, 2, 3, 4, 5, 6]
    shared = [r for r in records if r.state is RoundEnd.RELEASED]
    assert 1 <= len(shared) < 6
    assert all(r.state is RoundEnd.ALONE for r in records[len(shared) :])
    assert "contributors have weight left, at least 3 are needed" in records[-1].reason
    contributor = present(journal(federation, "c1", "harsh").site_state())
    assert present(contributor.finished) == "local_only: too few contributors are left"
    assert records[-1].model_version == 6
    kept = journal(federation, REQUESTER, "harsh")
    facts = kept_model(kept, Kept.FEDERATED)
    assert facts == KeptModel(version=len(shared))
    assert np.array_equal(
        load_kept(kept, Kept.FEDERATED, facts), journal(federation, "c1", "harsh").load_model(len(shared))
    )


def test_a_site_that_leaves_contributes_no_more_and_the_others_go_on(federation: InMemoryFederation) -> None:
    everybody = (REQUESTER, "c1", "c2", "c3", "c4")
    with federation.agents():
        federation.hand_in(study_for(federation, "left", FEDAVG, 6))
        federation.until("round 1", lambda: len(rounds_of(federation, "c4", "left")) >= 1)
        journal(federation, "c4", "left").leave("the permit has ended")
        federation.until("the end", finished(federation, "left", *everybody))
    records = rounds_of(federation, REQUESTER, "left")
    said = [one for record in records for one in record.absences if one.site == "c4"]
    assert said[0].why is Absent.DECLINED
    assert said[0].text == "left: left: this site has left the study: the permit has ended"
    assert {one.why for one in said[1:]} == {Absent.GIVEN_UP}
    assert sum("c4" in record.took_part for record in records) < 6
    assert [record.state for record in records[-2:]] == [RoundEnd.RELEASED] * 2


class Unfit(Odd):
    """A site whose data do not fit the study."""

    def prepare(self) -> None:
        raise ConfigurationError("y holds NaN in 2 rows")


def test_the_requester_is_told_who_is_missing_and_who_cannot_begin(federation: InMemoryFederation) -> None:
    """c4's data must be mended and c5's agent is not running; what is wrong with the data stays at c4."""
    told = lambda: [text for text in federation.texts(EventKind.STUDY, REQUESTER) if text.startswith("since ")]  # noqa: E731
    with federation.agents(REQUESTER, "c1", "c2", "c3", "c4", learner=with_odd({"c4": Unfit})):
        federation.hand_in(study_for(federation, "waiting", FEDAVG, 2))
        federation.until("these two alone are named", lambda: bool(told()) and _named(told()[-1]) == {"c4", "c5"})
        assert "c5 (nothing heard of its agent" in told()[-1]
        assert "NaN" not in told()[-1]
        hindered = "c4 (since "
        federation.until("c4's letter", lambda: hindered in told()[-1])
        assert "it cannot begin: something there, its data or settings, must be mended" in told()[-1]
        federation.stop_agents("c4")
        federation.start("c4", "c5")
        federation.until("the end", finished(federation, "waiting", REQUESTER, "c4"))
    assert "c4" in rounds_of(federation, REQUESTER, "waiting")[0].took_part


def _named(text: str) -> set[str]:
    return {site for site in ("c1", "c2", "c3", "c4", "c5") if f"{site} (" in text}


def said_by(federation: InMemoryFederation, site: str, word: str, reason: str) -> None:
    config = str(federation.config(site))
    arguments = [word, "asked", "--config", config, "--person", "Dr. Yes", "--reason", reason, "--yes"]
    result = CliRunner().invoke(agent_app, arguments)
    assert result.exit_code == 0, result.output
    assert f"study asked: {word}d by Dr. Yes" in result.output


def test_nothing_trains_without_a_persons_word(federation: InMemoryFederation) -> None:
    """c4 asks its people, who say yes when the study waits for them; c5's say no, and the others go on."""
    settings = {site: federation.config(site) for site in (REQUESTER, "c4", "c5")}
    for site in ("c4", "c5"):
        settings[site].write_text(settings[site].read_text().replace('approve = "policy"', 'approve = "manual"'))
    settings[REQUESTER].write_text(f"start_when = 4\n{settings[REQUESTER].read_text()}")
    at = lambda site, text: any(text in one for one in federation.texts(EventKind.STUDY, site))  # noqa: E731
    with federation.agents():
        federation.hand_in(study_for(federation, "asked", FEDAVG, 2))
        federation.until("both wait", lambda: all(at(site, "waits for a person") for site in ("c4", "c5")))
        said_by(federation, "c5", "decline", "no permit")
        federation.until("the requester hears", lambda: at(REQUESTER, "c5 (since"))
        assert at(REQUESTER, "it takes no part: its people declined the study")
        assert not rounds_of(federation, REQUESTER, "asked")
        said_by(federation, "c4", "approve", "permit 12")
        federation.until("the end", finished(federation, "asked", REQUESTER, "c4", "c5"))
    records = rounds_of(federation, REQUESTER, "asked")
    assert ["c4" in record.took_part and "c5" not in record.took_part for record in records] == [True, True]
    words = [json.loads(line) for line in (federation.state("c4") / "approvals.jsonl").read_text().splitlines()]
    assert [(word["person"], word["approved"], word["reason"]) for word in words] == [("Dr. Yes", True, "permit 12")]
    state = present(journal(federation, "c5", "asked").site_state())
    assert state.finished == "declined by Dr. Yes: no permit"
    assert state.model_version is None
