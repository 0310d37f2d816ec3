"""``moiety study report`` of a study in every state, over a federation in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_agent.cli.study import app
from client_agent.page.report import StudyReport, report_html, study_report
from client_agent.page.study_state import Federated
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.events import Absent
from client_agent.site.identity import load_chain
from client_agent.site.journal import STOPPED, SiteState, StudyJournal
from client_agent.site.privacy_budget import Steps, accountant, epsilon_of, share_used
from client_agent.study.outbox import REFUSAL, create_study, queued, withdraw
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from protocol.errors import ConfigurationError
from protocol.messages.control import (
    EndCause,
    PrivacySpec,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    sign,
)
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import EROSION, FEDAVG, changed, finished, rounds_of, run_to_end, spec, study_for
from tests.kit.present import present

SITES = ("requester", "c1", "c2", "c3")
ROUNDS = 3
NOW_S = 1_700_000_000.0
Ended = tuple[AgentSettings, AgentSettings, StudyReport, Path]


def federation(folder: Path) -> InMemoryFederation:
    policy = SitePolicy(least_isolation=0.0, least_contributors=2)
    return InMemoryFederation(spec(dict.fromkeys(SITES, policy)), folder, torch_learner)


def report_of(settings: AgentSettings, name: str = "heart") -> StudyReport:
    return study_report(settings, name, NOW_S)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The requester's settings and a contributor's after a whole study, and the report made while it went on."""
    with federation(tmp_path_factory.mktemp("report")) as running:
        config = running.config(SITES[0])
        settings = load_settings(config)
        running.start()
        running.hand_in(changed(study_for(running, "heart", EROSION, ROUNDS), least_contributors=2))
        running.until("a round", lambda: len(rounds_of(running, SITES[0], "heart")) >= 1)
        half = report_of(settings)
        running.stop_agents("c3")
        running.until("the end", finished(running, "heart", *SITES[:3]))
        return settings, load_settings(running.config("c1")), half, config


def test_a_study_under_way(ended: Ended) -> None:
    half = ended[2]
    assert (half.state, half.outcome, half.scores) == ("under way", "", None)
    assert 1 <= len(half.rounds) <= ROUNDS
    page = report_html(half)
    assert "without intervals: the study is not over" in page
    assert "<b>under way</b>" in page


def test_a_study_that_is_over(ended: Ended) -> None:
    whole = report_of(ended[0])
    assert whole.state == "completed"
    assert whole.federated is Federated.WHOLLY
    assert whole.sums == ROUNDS == len(whole.rounds)
    assert [one.site for one in whole.sites] == list(SITES[1:])
    stayed, left = whole.sites[0], whole.sites[-1]
    assert stayed.sums == ROUNDS
    assert stayed.missed == ()
    assert stayed.distance is not None
    assert stayed.first_weight is not None
    given = [one.numerator / r.grid for r in whole.rounds for one in r.weights if one.site == stayed.site]
    assert stayed.weights == pytest.approx(sum(given))
    assert left.sums < ROUNDS
    assert {one.why for one in left.missed} <= {Absent.NO_CONTRIBUTION, Absent.GIVEN_UP, Absent.NOT_LISTED}
    assert sum(one.rounds for one in left.missed) == ROUNDS - left.sums
    assert whole.scores is not None
    assert present(whole.card).model_version == ROUNDS
    assert whole.privacy is None
    assert StudyReport.model_validate_json(whole.model_dump_json()) == whole


def test_the_page_stands_by_itself(ended: Ended) -> None:
    page = report_html(report_of(ended[0]))
    for outside in ("http-equiv", "<script", "<link", "<img", "src=", "url(", "@import"):
        assert outside not in page
    # accuracy, log-loss, weights, distances, isolation
    assert page.count("<svg") == 5
    for text in ("Weight Erosion", "distance_penalty = 0.01", "c3", "The sites added no noise: no bound", "Model card"):
        assert text in page


def test_costs_are_the_ledgers_and_of_this_study(
    ended: Ended,
) -> None:
    whole = report_of(ended[0])
    purposes = {one.purpose for one in whole.costs}
    assert {"contribution", "queries", "opening", "output", "view"} <= purposes
    assert "list studies" not in purposes
    assert "create study" in {one.purpose for one in whole.costs_of_all}
    contribution = next(one for one in whole.costs if one.purpose == "contribution")
    assert contribution.exchanges >= ROUNDS
    assert contribution.sent_bytes > 0


def test_a_contributors_report_has_no_numbers_about_others(
    ended: Ended,
) -> None:
    own = report_of(ended[1])
    assert not own.at_requester
    assert all((one.first_weight, one.distance) == (None, None) for one in own.sites)
    page = report_html(own)
    assert "a contributor; its requester is requester" in page
    assert "Distances.</b>" not in page


def test_the_command_writes_a_file_or_json(ended: Ended, tmp_path: Path) -> None:
    run, out = CliRunner(), tmp_path / "r.html"
    said = run.invoke(app, ["report", "heart", "--config", str(ended[3]), "--out", str(out)])
    assert said.exit_code == 0, said.output
    assert out.read_text().startswith("<!doctype html>")
    shown = run.invoke(app, ["report", "heart", "--config", str(ended[3]), "--json"])
    found = json.loads(shown.stdout)
    assert (found["report"], found["state"]) == ("moiety-study-report/1", "completed")


def test_states_before_and_beside_the_rounds(ended: Ended, tmp_path: Path) -> None:
    settings = ended[0].model_copy(update={"state_dir": tmp_path / "state"})
    with pytest.raises(ConfigurationError, match="has no study 'heart'"):
        report_of(settings)
    signed = (ended[0].state_dir / "studies" / "heart" / "study.json").read_bytes()
    create_study(settings.state_dir, Signed[Study].model_validate_json(signed).message)
    waiting = report_of(settings)
    assert (waiting.state, waiting.rounds, waiting.federated) == ("queued", (), Federated.NOT)
    assert "No round has ended here yet" in report_html(waiting)
    withdraw(settings.state_dir, "heart")
    queued(settings.state_dir, "heart").with_suffix(REFUSAL).write_text("no such rule")
    with pytest.raises(ConfigurationError, match="this site's agent refused it: no such rule"):
        report_of(settings)
    journal = StudyJournal(settings.state_dir, "heart")
    (journal.folder / "study.json").write_bytes(signed)
    assert report_of(settings).state == "under way"
    (journal.folder / STOPPED).write_text("the disk is full")
    stopped = report_of(settings)
    assert (stopped.state, stopped.reason) == ("stopped", "the disk is full")
    assert "no model here yet" in stopped.no_card
    journal.leave("asked by <the board>")
    assert "&lt;the board&gt;" in report_html(report_of(settings))
    journal.withdraw()
    assert report_of(settings).state == "withdrawn"


def test_an_end_that_was_not_asked_for_says_so_first(ended: Ended, tmp_path: Path) -> None:
    settings = ended[0].model_copy(update={"state_dir": tmp_path / "state"})
    _, keys = load_chain(settings)
    journal = StudyJournal(settings.state_dir, "heart")
    signed = (ended[0].state_dir / "studies" / "heart" / "study.json").read_bytes()
    (journal.folder / "study.json").write_bytes(signed)
    digest = Signed[Study].model_validate_json(signed).message.digest()
    for state, words in ((StudyEndState.LOCAL_ONLY, "local only"), (StudyEndState.FAILED, "failed")):
        end = StudyEnd(study_digest=digest, state=state, cause=EndCause.ISOLATION, reason="<b>too close</b>")
        kept = SiteState(
            study_digest=digest, training_seed=1, ended_by=sign(end, keys.name, keys.signing), finished=words
        )
        journal.write_site_state(kept)
        found = report_of(settings)
        page = report_html(found)
        assert (found.state, found.federated) == (words, Federated.NOT)
        assert f'<p class="alarm">NOT FEDERATED: study heart is {state.value} (&lt;b&gt;too close&lt;/b&gt;)' in page


NOISE = 2.0


@pytest.fixture(scope="module")
def noised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Settings of the requester and of c1 after a study with noise."""
    with federation(tmp_path_factory.mktemp("noised")) as running:
        running.start()
        study = study_for(running, "of-record", FEDAVG, 2)
        run_to_end(running, changed(study, privacy=PrivacySpec(record_clip=1.0, noise_multiplier=NOISE)))
        return running.config(SITES[0]), running.config("c1")


def test_a_study_with_noise_says_its_epsilon_wherever_it_is_read(noised: tuple[Path, Path], tmp_path: Path) -> None:
    """Counted by what was trained, at the requester and at a contributor alike; page, JSON, card."""
    for config in noised:
        out = tmp_path / "r.html"
        said = CliRunner().invoke(app, ["report", "of-record", "--config", str(config), "--out", str(out)])
        assert said.exit_code == 0, said.output
        page, found = out.read_text(), report_of(load_settings(config), "of-record")
        own = present(found.privacy)
        assert (found.state, found.sums, own.unit, own.trainings) == ("completed", 2, "record", 2)
        assert own.epsilon == own.spent == epsilon_of([Steps(16 / 60, NOISE, 2)], own.delta)
        assert f"<td>epsilon of this study, per record of this site</td><td>{own.epsilon:.3f}</td>" in page
        assert f"<td>delta</td><td>{own.delta:g}</td>" in page
        assert page.count(accountant()) == 3  # before it began, what was counted, the card
        assert "<td>budget</td><td>none is set</td>" in page
        assert f"Epsilon {own.epsilon:.2f} at delta {own.delta:g} for each record of the site" in page
        assert StudyReport.model_validate_json(found.model_dump_json()) == found


def test_averaging_opens_no_distances(noised: tuple[Path, Path]) -> None:
    found = report_of(load_settings(noised[0]), "of-record")
    assert "Distances.</b>" not in report_html(found)
    assert {one.distance for one in found.sites} == {None}


def test_a_report_says_how_much_of_the_budget_is_used(noised: tuple[Path, Path]) -> None:
    settings = load_settings(noised[0])
    policy = settings.policy.model_copy(update={"epsilon": 50.0})
    settings = settings.model_copy(update={"policy": policy})
    used = share_used([Steps(16 / 60, NOISE, 2)], 50.0, policy.delta)
    assert f"50, of which {used:.0%} is used" in report_html(report_of(settings, "of-record"))


def test_epsilon_before_it_began_is_said_with_what_this_site_has(noised: tuple[Path, Path], tmp_path: Path) -> None:
    """Seventeen examples are drawn almost always, in two steps: that spends more than any declared number."""
    np.savez(tmp_path / "train.npz", y=np.zeros(17))
    settings = load_settings(noised[1])
    of_declared = {one.name: one.value for one in report_of(settings, "of-record").statements}
    found = report_of(settings.model_copy(update={"data": tmp_path}), "of-record")
    said = {one.name: one.value for one in found.statements}
    assert "a site of 17 examples" in said["epsilon"]
    assert said["epsilon"] != of_declared["epsilon"]
