"""A site's page: who may come in, what another user or web page can do (nothing), what it shows, in which language."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import httpx
import numpy as np
import pytest

from client_agent.cli.agent_work import show_status
from client_agent.net.contacts import CONTACTS, Contacts
from client_agent.page import app
from client_agent.page.app import COOKIE, Door, make_page
from client_agent.page.contents import remove_leftovers, zipped_model
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
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.models import Kept, KeptModel, save_kept
from client_agent.site.notifications import Problems
from client_agent.site.privacy_budget import Steps, accountant, budget_memory, epsilon_of
from client_agent.study.approval import approval_of, known_study
from client_agent.study.privacy_spending import foreseen_epsilon, training_of
from harness.federation.processes import write_secret
from host.audit_log import AUDIT
from host.doctor import Report, failed, ok
from host.folder_lock import one_process
from host.web_page import FORM_FIELD
from protocol.messages.control import PrivacySpec, RuleName, RuleSpec, Study, TrainingSpec, sign
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import dump_party_keys
from tests.kit.present import present
from tests.kit.studies import round_record
from tests.unit.client_agent.commands import write_config
from tests.unit.client_agent.federation import REQUESTER, ROSTER, keys, study
from tests.unit.client_agent.test_product import study_of

# --- page -------------------------------------------------------------------------------------------------------------

STUDY = study()
PORT = 8765
ORIGIN = f"http://127.0.0.1:{PORT}"
REPORT = Report(
    of="c1", findings=(ok("disk", "9 GB free"), failed("clock", "off by <b>ten</b> minutes", "let NTP set it"))
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of site c1, whose agent has found the study."""
    found = write_config(tmp_path)
    write_secret(tmp_path / "c1.toml", dump_party_keys(keys("c1")))
    found.write_text(found.read_text().replace(f'"{REQUESTER}"', '"c1"').replace("keys.toml", "c1.toml"))
    kept = journal(found)
    kept.write(kept.folder / "study.json", sign(STUDY, REQUESTER, keys(REQUESTER).signing))
    return found


def journal(config: Path) -> StudyJournal:
    return StudyJournal(config.parent / "state", STUDY.name)


def as_requester(config: Path) -> Path:
    config.write_text(config.read_text().replace('"c1"', f'"{REQUESTER}"').replace("c1.toml", "keys.toml"))
    return config


class Browser:
    """Asks the page in this process, and keeps its cookies."""

    def __init__(self, config: Path, door: Door) -> None:
        self.door = door
        self._transport = httpx.ASGITransport(make_page(load_settings(config), door, lambda: REPORT))
        self._cookies = httpx.Cookies()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, more))

    def say(self, word: str, origin: str | None = ORIGIN, **fields: str) -> httpx.Response:
        """A person's word on the study, by the page's form."""
        headers = {} if origin is None else {"origin": origin}
        return self.post(f"/studies/{STUDY.name}/{word}", data=form(self.door, **fields), headers=headers)

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url=ORIGIN, cookies=self._cookies) as client:
            answer = await client.request(method, path, **more)
            self._cookies = httpx.Cookies(client.cookies)
            return answer


def entered(config: Path, door: Door | None = None) -> Browser:
    client = Browser(config, door or Door(PORT))
    assert client.get("/login", params={"token": client.door.token}).headers["location"] == "/"
    return client


async def _piece() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
def door() -> Door:
    return Door(PORT)


@pytest.fixture
def inside(config: Path) -> Browser:
    return entered(config)


def form(door: Door, **fields: str) -> dict[str, str]:
    return {FORM_FIELD: door.form_token, "digest": STUDY.digest(), "person": "Dr. A", "reason": "permit 7", **fields}


# --- what the site needs ----------------------------------------------------------------------------------------------


def test_what_doctor_finds_is_shown_with_what_to_do(inside: Browser) -> None:
    text = inside.get("/check").text
    assert "Something keeps the agent from running." in text
    assert "off by &lt;b&gt;ten&lt;/b&gt; minutes<br>let NTP set it" in text
    assert "9 GB free" in text


# --- the door ---------------------------------------------------------------------------------------------------------


def test_the_token_opens_once_and_the_cookie_is_the_browsers_alone(config: Path, door: Door) -> None:
    client = Browser(config, door)
    assert client.get("/").status_code == 403
    assert client.get("/login", params={"token": "x"}).status_code == 403
    came = client.get("/login", params={"token": door.token})
    said = came.headers["set-cookie"].lower()
    assert all(part in said for part in ("httponly", "samesite=strict", "path=/"))
    assert client.get("/").status_code == 200
    other = Browser(config, door)
    assert other.get("/login", params={"token": door.token}).status_code == 403
    assert other.get("/", headers={"cookie": f"{COOKIE}={'x' * 43}"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost:8765", "127.0.0.1", "[::1]:8765"])
def test_another_name_for_this_machine_is_answered_by_nothing(inside: Browser, host: str) -> None:
    for path in ("/", "/login", f"/studies/{STUDY.name}", "/static/page.js"):
        assert inside.get(path, headers={"host": host}).status_code == 421


def test_every_answer_forbids_frames_other_origins_and_caches(inside: Browser) -> None:
    for path in ("/", "/ledger", f"/studies/{STUDY.name}", "/nowhere", "/static/page.css"):
        headers = inside.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert (headers["referrer-policy"], headers["cache-control"]) == ("same-origin", "no-store")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None, "http://127.0.0.1:9999"])
def test_another_page_approves_nothing(inside: Browser, config: Path, origin: str | None) -> None:
    """With the session's cookie and even its form's token: what SameSite and the form would each stop alone."""
    assert inside.say("approve", origin).status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_form_without_the_sessions_token_approves_nothing(inside: Browser, config: Path) -> None:
    for token in ("", "x", Door(PORT).form_token):
        assert inside.say("approve", **{FORM_FIELD: token}).status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_another_user_of_the_machine_approves_nothing(config: Path, door: Door) -> None:
    """A user with neither the token nor the cookie, whatever else it says."""
    stranger = Browser(config, door)
    door.enter(door.token)
    for word in ("approve", "leave"):
        assert stranger.say(word).status_code == 403
    assert stranger.get(f"/studies/{STUDY.name}").status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None
    assert journal(config).left is None


def test_more_than_a_form_is_not_read(inside: Browser) -> None:
    assert inside.say("approve", reason="x" * 20_000).status_code == 413
    unsized = inside.post(f"/studies/{STUDY.name}/approve", content=_piece(), headers={"origin": ORIGIN})
    assert unsized.status_code == 413


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_yes_is_kept_with_name_reason_and_digest(inside: Browser, config: Path) -> None:
    assert "waits for your yes or no" in inside.get("/").text
    assert "two halves that look random" in inside.get(f"/studies/{STUDY.name}").text
    sent = inside.say("approve")
    assert (sent.status_code, sent.headers["location"]) == (303, f"/studies/{STUDY.name}")
    word = present(approval_of(journal(config), STUDY.digest()))
    assert (word.approved, word.person, word.reason, word.study_digest) == (True, "Dr. A", "permit 7", STUDY.digest())
    after = inside.get(f"/studies/{STUDY.name}").text
    assert "Approve</button>" not in after
    assert "Leave this study" in after
    inside.say("leave", reason="over")
    assert journal(config).left == "Dr. A: over"


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"digest": "0" * 64}, "is another one than was shown"), ({"person": " "}, "needs the name of the person")],
)
def test_a_word_is_on_what_was_shown_and_by_somebody(
    fields: dict[str, str], said: str, inside: Browser, config: Path
) -> None:
    sent = inside.say("approve", **fields)
    assert sent.status_code == 409
    assert said in sent.text
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_no_ends_it(inside: Browser, config: Path) -> None:
    inside.say("decline")
    word = present(approval_of(journal(config), STUDY.digest()))
    assert not word.approved
    assert "left by this site" in inside.get("/").text


def test_unknown_pages_studies_and_words(inside: Browser) -> None:
    assert inside.get("/nowhere").status_code == 404
    assert "knows no study" in inside.get("/studies/other").text
    odd = inside.say("delete")
    assert odd.status_code == 404
    assert inside.get("/static/door.py").status_code in (403, 404)
    assert inside.post("/login", headers={"origin": ORIGIN}).status_code == 405


# --- page address -----------------------------------------------------------------------------------------------------


def test_who_opens_the_address_at_once_is_not_turned_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The page itself may take a moment: it is not serving yet when its address stands in the terminal."""
    connected: list[bool] = []

    def begins_late(config: object) -> Any:
        printed = present(re.search(r"http://127\.0\.0\.1:(\d+)/login", capsys.readouterr().out))
        with socket.create_connection(("127.0.0.1", int(printed[1])), timeout=5.0):
            connected.append(True)
        return SimpleNamespace(run=lambda sockets: [one.close() for one in sockets])

    monkeypatch.setattr(app, "make_page", lambda settings, door, look: None)
    monkeypatch.setattr("uvicorn.Server", begins_late)
    settings: Any = SimpleNamespace(state_dir=tmp_path)
    app.serve_page(settings, 0, lambda: pytest.fail("nobody looks"))
    assert connected == [True]


# --- page contents ----------------------------------------------------------------------------------------------------


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
