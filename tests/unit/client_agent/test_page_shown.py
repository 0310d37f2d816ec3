"""A site's page shows weights, budgets, servers, models, what left; in the reader's language."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from client_agent.cli.agent_work import show_status
from client_agent.net.contacts import CONTACTS, Contacts
from client_agent.page.app import Door, remove_leftovers, zipped_model
from client_agent.settings import load_settings
from client_agent.site.events import (
    METRICS,
    Absence,
    Absent,
    AgentEvent,
    EventKind,
    RoundEnd,
    append_record,
    site_values,
)
from client_agent.site.identity import load_identity
from client_agent.site.journal import Kept, KeptModel, SiteState, StudyJournal, save_kept
from client_agent.site.notifications import Problems
from client_agent.site.privacy_budget import Steps, accountant, budget_memory, epsilon_of
from client_agent.study.approval import known_study
from client_agent.study.privacy_spending import foreseen_epsilon, training_of
from host.audit_log import AUDIT
from host.folder_lock import one_process
from protocol.messages.control import PrivacySpec, RuleName, RuleSpec, Study, TrainingSpec, sign
from protocol.policy.site_policy import SitePolicy
from tests.kit.present import present
from tests.kit.studies import round_record
from tests.unit.client_agent.federation import REQUESTER, ROSTER, keys
from tests.unit.client_agent.test_page import (
    PORT,
    STUDY,
    Browser,
    as_requester,
    config,
    entered,
    inside,
    journal,
)
from tests.unit.client_agent.test_product import study_of

assert config  # a fixture of that module, as the next one
assert inside


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_requester_sees_weights_and_who_was_missing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = journal(as_requester(config))
    kept.write_site_state(SiteState(study_digest=STUDY.digest(), training_seed=1, model_version=2))
    metrics = kept.folder / METRICS
    absent = (Absence(site="c2", why=Absent.DECLINED, text="isolation: <b>too close</b>"),)
    for number, weight in ((1, 1.0), (2, 0.5)):
        alphas = site_values([("c1", weight)])
        shown_of = dict[str, Any](took_part=(REQUESTER, "c1"), alphas=alphas, absences=absent, isolation=0.42)
        append_record(metrics, round_record(number, site=REQUESTER, **shown_of))
    client = entered(config)
    shown = client.get(f"/studies/{STUDY.name}").text
    assert "This site asks" in client.get("/").text
    append_record(metrics, round_record(STUDY.rounds + 1, RoundEnd.FINISHED, site=REQUESTER))
    counted = f"{STUDY.rounds + 1} (the study has {STUDY.rounds} of updates)"
    assert f"{counted}, finished" in client.get("/now").text
    show_status(load_settings(config), json_output=False)
    assert f"round {counted} finished" in capsys.readouterr().out
    assert "<svg" in shown
    assert shown.count("c2 (declined: isolation: &lt;b&gt;too close&lt;/b&gt;)") == 1
    assert shown.count("c2 (declined, as before)") == 1
    assert "0.420" in shown
    assert "Approve</button>" not in shown
    assert "Leave this study" not in shown


def test_a_study_is_paused_and_resumed(inside: Browser, config: Path) -> None:
    path = f"/studies/{STUDY.name}"
    inside.say("approve")
    assert "Pause this study" in inside.get(path).text
    nobody = inside.say("pause", person=" ")
    assert nobody.status_code == 409
    inside.say("pause", reason="<i>new scanner</i>")
    assert journal(config).paused == "Dr. A: <i>new scanner</i>"
    shown = inside.get(path).text
    assert "Paused here by Dr. A: &lt;i&gt;new scanner&lt;/i&gt;." in shown
    assert "paused here" in inside.get("/now").text
    assert inside.say("resume", "https://evil.example").status_code == 403
    assert journal(config).paused is not None
    inside.say("resume")
    assert journal(config).paused is None
    again = inside.say("resume")
    assert "is not paused" in again.text


def test_a_requester_can_be_made_to_leave_or_pause_nothing(config: Path) -> None:
    kept = journal(as_requester(config))
    client = entered(config)
    for word, instead in (("leave", "moiety study cancel unit"), ("pause", "stop its agent to pause it")):
        sent = client.say(word)
        assert sent.status_code == 409
        assert instead in sent.text
    assert (kept.left, kept.paused) == (None, None)


def test_servers_problems_and_whether_an_agent_runs_are_shown(inside: Browser, config: Path) -> None:
    state = config.parent / "state"
    text = inside.get("/now").text
    assert "No agent runs here." in text
    assert text.count("never asked") == 2
    now = [1_700_000_000.0]
    contacts = Contacts(state / CONTACTS, lambda: now[0])
    contacts.reached("operator-a", "Tue, 14 Nov 2023 22:13:17 GMT")
    contacts.failed("operator-b", "nobody listens <there>")
    Problems(state, lambda: now[0]).noting(lambda _: None)(
        AgentEvent(kind=EventKind.PROBLEM, site="c1", study=STUDY.name, round=3, text="data: put <train.npz> back")
    )
    with one_process(state, "state_dir", "the agent of 'c1'"):
        text = inside.get("/now").text
    assert "The agent runs." in text
    assert "clock off by 2.0 s, give or take one" in text
    assert "out of reach since 2023-11-14 22:13:20 UTC" in text
    assert "(nobody listens &lt;there&gt;)" in text
    assert "data: put &lt;train.npz&gt; back" in inside.get(f"/studies/{STUDY.name}").text


def test_the_privacy_budget_is_shown(config: Path) -> None:
    client = entered(config)
    assert "has no budget" in client.get("/budget").text
    config.write_text(config.read_text() + "\n[policy]\nepsilon = 3.0\n")
    client = entered(config)
    text = client.get("/budget").text
    assert "epsilon 3, of which 0.0 percent are used" in text
    assert "epsilon 0.000 at delta 1e-05" in text


def test_what_was_spent_is_shown_study_by_study(config: Path) -> None:
    config.write_text(config.read_text() + "\n[policy]\ndelta = 1e-3\n")
    settings = load_settings(config)
    memory = budget_memory(settings.state_dir, load_identity(settings)[1])
    by_name = {"quiet": 2.0, "loud": 3.0}
    for name, noise in by_name.items():
        privacy = PrivacySpec(record_clip=1.0, noise_multiplier=noise)
        study = STUDY.model_copy(update={"name": name, "privacy": privacy, "training": TrainingSpec(batch_size=16)})
        memory.charge(training_of(study, privacy, 100, 1), settings.policy)
    client = entered(config)
    text = " ".join(client.get("/budget").text.split())
    steps = {name: Steps(0.16, noise, 1) for name, noise in by_name.items()}
    for name, one in steps.items():
        cells = f'<td class="number">1</td><td class="number">{epsilon_of([one], 1e-3):.3f}</td>'
        assert f'<th scope="row">{name}</th>{cells}' in text
    assert f"epsilon {epsilon_of([*steps.values()], 1e-3):.3f} at delta 0.001, of each single record" in text
    assert accountant() in text


def test_epsilon_is_read_before_a_study_is_approved(config: Path) -> None:
    privacy = PrivacySpec(record_clip=1.0, noise_multiplier=2.0)
    changed = {"name": "noised", "privacy": privacy, "rounds": 7, "rule": RuleSpec(name=RuleName.FEDAVG)}
    noised = study_of().model_copy(update=changed)
    kept = StudyJournal(config.parent / "state", "noised")
    kept.write(kept.folder / "study.json", sign(noised, REQUESTER, keys(REQUESTER).signing))
    spends = present(foreseen_epsilon(noised, ROSTER, SitePolicy().delta))
    client = entered(config)
    text = client.get("/studies/noised").text
    german = client.get("/studies/noised", headers={"accept-language": "de"}).text
    assert f"<dt>epsilon</dt><dd>{spends.epsilon:.3f} at delta 1e-05, if all 7 rounds take place: of " in text
    assert "of one record at a site of" in text
    assert f"<dt>Epsilon</dt><dd>{spends.epsilon:.3f} bei Delta 1e-05, wenn alle 7 Runden stattfinden" in german
    assert accountant() in text


def test_pages_speak_german_where_the_reader_does(inside: Browser) -> None:
    german = inside.get("/", headers={"accept-language": "de-CH,en;q=0.5"}).text
    assert '<html lang="de">' in german
    assert "Was dieser Standort verlangt" in german
    assert "What this site demands" in inside.get("/").text
    assert inside.get("/language/xx").status_code == 404
    inside.get("/language/de")
    assert "Was dieser Standort verlangt" in inside.get("/", headers={"accept-language": "en"}).text
    assert "Eine solche Seite gibt es hier nicht." in inside.get("/nowhere").text


def test_a_model_that_is_not_here_is_not_found(inside: Browser) -> None:
    for which in ("last", "best", "..%2F..%2Fkeys", "x"):
        assert inside.get(f"/studies/{STUDY.name}/models/{which}").status_code == 404


def with_a_model(config: Path) -> tuple[Study, StudyJournal]:
    made = study_of()
    kept = StudyJournal(config.parent / "state", made.name)
    kept.write(kept.folder / "study.json", sign(made, REQUESTER, keys(REQUESTER).signing))
    kept.save_model(5, np.arange(made.parameters.dimension, dtype=np.float32), made.digest())
    kept.write_site_state(SiteState(study_digest=made.digest(), training_seed=1, model_version=5))
    return made, kept


def files_in(state: Path) -> set[Path]:
    return {path for path in state.rglob("*") if path.name != AUDIT}


def test_a_full_disk_leaves_no_part_of_a_model(inside: Browser, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = with_a_model(config)
    before = files_in(config.parent / "state")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ZipFile, "write", full)
    answer = inside.get(f"/studies/{made.name}/models/last")
    assert answer.status_code == 409
    assert "no space left for this model" in answer.text
    assert files_in(config.parent / "state") == before


def test_a_page_that_is_killed_leaves_no_model_outside_of_what_a_deletion_empties(config: Path) -> None:
    """While it is sent it has no name; while it is made it lies in the study's folder, until a page begins again."""
    made, kept = with_a_model(config)
    settings = load_settings(config)
    roster, _ = load_identity(settings)
    before = files_in(settings.state_dir)
    with zipped_model(settings, known_study(settings, roster, made.name), "last", is_requester=False) as file:
        assert files_in(settings.state_dir) == before
        assert len(ZipFile(file).namelist()) > 2
    for path in (kept.folder / "for-a-browser-x7/alone-last/model.safetensors", settings.state_dir / "tmpab12.zip"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a model")
    remove_leftovers(settings)
    assert files_in(settings.state_dir) == before


def test_a_model_is_downloaded_with_its_card(inside: Browser, config: Path) -> None:
    made, kept = with_a_model(config)
    save_kept(kept, Kept.BEST, KeptModel(version=4), np.ones(made.parameters.dimension, dtype=np.float32))
    text = inside.get(f"/studies/{made.name}").text
    assert f'href="/studies/{made.name}/models/last"' in text
    assert "before this site went on alone" not in text
    for which, version in (("last", 5), ("best", 4)):
        answer = inside.get(f"/studies/{made.name}/models/{which}")
        assert answer.headers["content-type"] == "application/zip"
        with ZipFile(io.BytesIO(answer.content)) as folder:
            assert f"alone-{which}/card.md" in folder.namelist()
            card = json.loads(folder.read(f"alone-{which}/card.json"))
        assert card["model_version"] == version
        assert answer.headers["content-disposition"] == f'attachment; filename="alone-{which}.zip"'
        assert int(answer.headers["content-length"]) == len(answer.content)
    assert not list((config.parent / "state").glob("*.zip"))
    stranger = Browser(config, Door(PORT))
    assert stranger.get(f"/studies/{made.name}/models/last").status_code == 403


def test_what_left_is_summed(inside: Browser, config: Path) -> None:
    assert "Nothing yet." in inside.get("/ledger").text
