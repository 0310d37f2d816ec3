"""Budgets over whole studies: refused before they begin, spent in the middle, a count that is gone (section 19)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from client_agent.requester.study import RequesterState
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.privacy_budget import Steps, Training, budget_memory, epsilon_of, share_used
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import class_counts, light_study, torch_learner
from protocol.errors import Clause
from protocol.messages.control import EndCause, PrivacySpec, Study, StudyEndState
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import (
    FEDAVG,
    changed,
    final_model,
    finished,
    in_memory,
    journal,
    moiety,
    rounds_of,
    run_to_end,
    spec,
    study_for,
)
from tests.kit.present import present
from tests.unit.client_agent.test_budget import smallest_budget

SITES = ("requester", "c1", "c2", "c3")
DELTA = 1e-3
NOISE = 2.0
BATCH = 32
OPEN = SitePolicy(least_isolation=0.0, least_contributors=2, largest_share=1.0)


def budget(site: int, rounds: int) -> SitePolicy:
    """Room for so many rounds and not for one more."""
    steps = Steps(BATCH / sum(class_counts(site)), NOISE, rounds)
    return OPEN.model_copy(update={"delta": DELTA, "epsilon": smallest_budget([steps], DELTA)})


def noised(running: InMemoryFederation, name: str, rounds: int, least: int = 3) -> Study:
    study = light_study(running.parties, name, FEDAVG, rounds=rounds)
    privacy = PrivacySpec(record_clip=1.0, noise_multiplier=NOISE)
    return changed(study, least_contributors=least, privacy=privacy)


def trainings(running: InMemoryFederation, site: str) -> tuple[Training, ...]:
    return budget_memory(running.state(site), running.parties.keys_of(site).party().signing_key).spent.trainings


def end_of(running: InMemoryFederation, study: str) -> tuple[StudyEndState, EndCause, Clause | None, str | None]:
    own = journal(running, SITES[0], study)
    state = present(own.read(own.folder / "requester.json", RequesterState))
    end = present(state.end).message
    return end.state, end.cause, end.clause, end.site


def begin_both(running: InMemoryFederation, least: int) -> None:
    """Hand in studies ``one`` and ``other``; no round of either before the others have begun both: c3 comes last."""
    *early, last = SITES
    running.start(*early)
    for name in ("one", "other"):
        running.hand_in(noised(running, name, 3, least=least))
    journals = [journal(running, site, name) for site in early[1:] for name in ("one", "other")]
    running.until("both are begun", lambda: all(one.site_state() is not None for one in journals))
    running.start(last)


def test_a_budget_is_kept_across_studies_and_one_that_would_exceed_it_never_begins(tmp_path: Path) -> None:
    with in_memory(tmp_path, SITES, OPEN, c1=budget(1, 5)) as running:
        running.start()
        run_to_end(running, noised(running, "first", 3))
        assert end_of(running, "first")[0] is StudyEndState.COMPLETED
        run_to_end(running, noised(running, "second", 3))
        assert end_of(running, "second") == (StudyEndState.FAILED, EndCause.STUDY_REFUSED, Clause.BUDGET_SPENT, "c1")
        assert rounds_of(running, SITES[0], "second") == ()
        run_to_end(running, noised(running, "third", 2))
        assert end_of(running, "third")[0] is StudyEndState.COMPLETED
        counted = [(one.study, one.round) for one in trainings(running, "c1")]
    assert counted == [("first", 1), ("first", 2), ("first", 3), ("third", 1), ("third", 2)]


def test_a_study_ends_for_a_site_before_its_budget_is_exceeded_and_goes_on_with_the_others(tmp_path: Path) -> None:
    """Two studies that fit one by one, side by side: together they do not."""
    with in_memory(tmp_path, SITES, OPEN, c1=budget(1, 4)) as running:
        begin_both(running, least=2)
        for name in ("one", "other"):
            running.until(f"the end of {name}", finished(running, name, SITES[0], "c1"))
        spent = trainings(running, "c1")
        assert len(spent) == 4
        assert epsilon_of([one.times(1) for one in spent], DELTA) <= (budget(1, 4).epsilon or 0)
        over = [journal(running, "c1", name).site_state() for name in ("one", "other")]
        texts = [state.finished or "" for state in over if state is not None and state.refused]
        told = running.texts(EventKind.DECLINED, SITES[0])
    assert texts
    assert all(text.startswith("budget_spent: ") for text in texts)
    assert f"at delta {DELTA:g}" in texts[0]
    assert any("this site's privacy budget does not hold it" in text for text in told)
    assert not any("epsilon" in text for text in told)


def test_the_requesters_own_budget_ends_the_study_for_all(tmp_path: Path) -> None:
    with in_memory(tmp_path, SITES, OPEN, requester=budget(0, 4)) as running:
        begin_both(running, least=3)
        for name in ("one", "other"):
            running.until(f"the end of {name}", finished(running, name, *SITES))
        ends = [end_of(running, name) for name in ("one", "other")]
        assert len(trainings(running, SITES[0])) == 4
        records = [record for name in ("one", "other") for record in rounds_of(running, SITES[0], name)]
    assert (StudyEndState.LOCAL_ONLY, EndCause.BUDGET_SPENT, Clause.BUDGET_SPENT, None) in ends
    assert RoundEnd.ALONE not in {record.state for record in records}


def test_a_count_that_is_gone_contributes_nothing_until_a_person_says_so(tmp_path: Path) -> None:
    with in_memory(tmp_path, SITES, OPEN, c1=budget(1, 50)) as running:
        running.start()
        run_to_end(running, noised(running, "first", 2))
        running.stop_agents("c1")
        shutil.rmtree(running.state("c1") / "budget")
        running.start("c1")
        run_to_end(running, noised(running, "second", 2, least=2), SITES[0], "c2", "c3")
        declined = running.texts(EventKind.DECLINED, "c1")
        assert any("count of its privacy budget lacks 2 rounds" in text for text in declined)
        assert any("moiety agent accept-rollback" in text for text in declined)
        assert trainings(running, "c1") == ()
        took_part = {site for record in rounds_of(running, SITES[0], "second") for site in record.took_part}
        assert took_part == {"requester", "c2", "c3"}


def test_without_a_budget_noise_is_counted_and_nothing_is_refused(tmp_path: Path) -> None:
    with in_memory(tmp_path, SITES, OPEN) as running:
        running.start()
        run_to_end(running, noised(running, "first", 2))
        assert len(trainings(running, "c2")) == 2
        run_to_end(running, light_study(running.parties, "plain", FEDAVG, rounds=1))
        assert len(trainings(running, "c2")) == 2


def test_a_site_with_a_budget_takes_part_in_no_study_without_noise_nor_with_less_than_it_asks_for(
    tmp_path: Path,
) -> None:
    policy = OPEN.model_copy(update={"delta": DELTA, "epsilon": 50.0, "least_noise": NOISE * 1.01})
    with in_memory(tmp_path, SITES, OPEN, c1=policy) as running:
        running.start()
        run_to_end(running, light_study(running.parties, "plain", FEDAVG, rounds=1))
        run_to_end(running, noised(running, "quiet", 2))
        assert [end_of(running, name)[2:] for name in ("plain", "quiet")] == [(Clause.NOISE, "c1")] * 2
        assert trainings(running, "c1") == ()


def test_sites_that_train_in_earnest_add_noise_and_the_exported_model_says_what_it_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real learner over both servers: epsilon on the card and in the command is that of 60 records, 2 rounds."""
    policies = {name: OPEN.model_copy(update={"delta": DELTA, "epsilon": 20.0}) for name in SITES}
    with InMemoryFederation(spec(policies), tmp_path, torch_learner) as running:
        study = study_for(running, "earnest", FEDAVG)
        running.start()
        records = run_to_end(running, changed(study, privacy=PrivacySpec(record_clip=1.0, noise_multiplier=NOISE)))
        models = {final_model(running, site, "earnest") for site in SITES}
    assert [record.state for record in records] == [RoundEnd.RELEASED] * 2
    assert len(models) == 1
    spent = epsilon_of([Steps(16 / 60, NOISE, 2)], DELTA)
    config = str(running.config("c1"))
    capsys.readouterr()
    assert moiety("model", "export", "earnest", "--config", config, "--out", str(tmp_path / "out"), "--json") == 0
    card = json.loads(capsys.readouterr().out)["privacy"]
    assert (card["unit"], card["trainings"], card["noise_multiplier"]) == ("record", 2, NOISE)
    assert card["epsilon"] == pytest.approx(spent)
    assert moiety("agent", "status", "--config", config, "--json") == 0
    report = json.loads(capsys.readouterr().out)["budget"]
    assert report["spent"] == pytest.approx(spent)
    assert report["used"] == card["used"] == pytest.approx(share_used([Steps(16 / 60, NOISE, 2)], 20.0, DELTA))


def test_a_study_under_noise_of_the_servers_is_ended_by_its_requester_and_opens_no_further_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version began it; the property stands for that version."""
    with in_memory(tmp_path, SITES, OPEN) as running, monkeypatch.context() as older:
        older.setattr(Study, "unsupported", None)
        study = light_study(running.parties, "hidden", FEDAVG, rounds=500)
        running.hand_in(changed(study, privacy=PrivacySpec(unit="site", noise_multiplier=NOISE)))
        running.start()
        running.until("a sum", lambda: bool(rounds_of(running, SITES[0], "hidden")))
        running.stop_agents()
        older.undo()
        opened = len(rounds_of(running, SITES[0], "hidden"))
        running.start()
        running.until("the end", finished(running, "hidden", *SITES))
        assert end_of(running, "hidden") == (StudyEndState.FAILED, EndCause.STUDY_REFUSED, Clause.NOISE, None)
        assert len(rounds_of(running, SITES[0], "hidden")) == opened
