"""A site's page: who may come in, what another user or web page can do (nothing), and what it shows."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import numpy as np
import pytest

from client_agent.network.contacts import CONTACTS, Contacts
from client_agent.page.app import make_page
from client_agent.page.door import COOKIE, Door
from client_agent.page.picture import lines_over_rounds
from client_agent.settings import load_settings
from client_agent.site.approval import approval_of
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of
from client_agent.site.budget.spent_budget import budget_memory
from client_agent.site.events import (
    METRICS,
    Absence,
    Absent,
    AgentEvent,
    EventKind,
    Metrics,
    RoundEnd,
    RoundRecord,
    site_values,
)
from client_agent.site.identity import load_identity
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.models.kept_model import Kept, KeptModel, save_kept
from client_agent.site.telling.problems import Problems
from client_agent.study.asked.foreseen_epsilon import foreseen_epsilon
from client_agent.study.spending import training_of
from harness.federation.processes import write_secret
from host.doctor.finding import Report, failed, ok
from host.one_holder import one_process
from host.web_page.guard import FORM_FIELD
from protocol.policy.site_policy import SitePolicy
from protocol.wire.authentic import sign
from protocol.wire.keyfile import dump_party_keys
from protocol.wire.messages import PrivacySpec, RuleName, RuleSpec, TrainingSpec
from tests.unit.client_agent.federation import REQUESTER, ROSTER, keys, study
from tests.unit.client_agent.test_cli import write_config
from tests.unit.client_agent.test_product import study_of

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
        self._transport = httpx.ASGITransport(make_page(load_settings(config), door, lambda: REPORT))
        self._cookies = httpx.Cookies()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, more))

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url=ORIGIN, cookies=self._cookies) as client:
            answer = await client.request(method, path, **more)
            self._cookies = httpx.Cookies(client.cookies)
            return answer


def browser(config: Path, door: Door) -> Browser:
    return Browser(config, door)


async def _piece() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
def door() -> Door:
    return Door(PORT)


@pytest.fixture
def inside(config: Path, door: Door) -> Iterator[Browser]:
    with browser(config, door) as client:
        assert client.get("/login", params={"token": door.token}).headers["location"] == "/"
        yield client


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
    with browser(config, door) as client:
        assert client.get("/").status_code == 403
        assert client.get("/login", params={"token": "x"}).status_code == 403
        came = client.get("/login", params={"token": door.token})
        said = came.headers["set-cookie"].lower()
        assert all(part in said for part in ("httponly", "samesite=strict", "path=/"))
        assert client.get("/").status_code == 200
    with browser(config, door) as other:
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


ATTACKS = {
    "another page's form": {"origin": "https://evil.example"},
    "a page without an origin": {"origin": "null"},
    "no origin at all": {},
    "another port of this machine": {"origin": "http://127.0.0.1:9999"},
}


@pytest.mark.parametrize("name", list(ATTACKS))
def test_another_page_approves_nothing(inside: Browser, config: Path, door: Door, name: str) -> None:
    """With the session's cookie and even its form's token: what SameSite and the form would each stop alone."""
    sent = inside.post(f"/studies/{STUDY.name}/approve", data=form(door), headers=ATTACKS[name])
    assert sent.status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_form_without_the_sessions_token_approves_nothing(inside: Browser, config: Path, door: Door) -> None:
    for token in ("", "x", Door(PORT).form_token):
        sent = inside.post(
            f"/studies/{STUDY.name}/approve", data=form(door, **{FORM_FIELD: token}), headers={"origin": ORIGIN}
        )
        assert sent.status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_another_user_of_the_machine_approves_nothing(config: Path, door: Door) -> None:
    """Who has neither the token nor the cookie, whatever else it says."""
    with browser(config, door) as stranger:
        door.enter(door.token)
        for path in (f"/studies/{STUDY.name}/approve", f"/studies/{STUDY.name}/leave"):
            assert stranger.post(path, data=form(door), headers={"origin": ORIGIN}).status_code == 403
        assert stranger.get(f"/studies/{STUDY.name}").status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None
    assert journal(config).left is None


def test_more_than_a_form_is_not_read(inside: Browser, door: Door) -> None:
    path = f"/studies/{STUDY.name}/approve"
    long = inside.post(path, data=form(door, reason="x" * 20_000), headers={"origin": ORIGIN})
    assert long.status_code == 413
    unsized = inside.post(path, content=_piece(), headers={"origin": ORIGIN})
    assert unsized.status_code == 413


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_yes_is_kept_with_name_reason_and_digest(inside: Browser, config: Path, door: Door) -> None:
    assert "waits for your yes or no" in inside.get("/").text
    assert "two halves that look random" in inside.get(f"/studies/{STUDY.name}").text
    sent = inside.post(f"/studies/{STUDY.name}/approve", data=form(door), headers={"origin": ORIGIN})
    assert (sent.status_code, sent.headers["location"]) == (303, f"/studies/{STUDY.name}")
    word = approval_of(journal(config), STUDY.digest())
    assert word is not None
    assert (word.approved, word.person, word.reason, word.study_digest) == (True, "Dr. A", "permit 7", STUDY.digest())
    after = inside.get(f"/studies/{STUDY.name}").text
    assert "Approve</button>" not in after
    assert "Leave this study" in after
    inside.post(f"/studies/{STUDY.name}/leave", data=form(door, reason="over"), headers={"origin": ORIGIN})
    assert journal(config).left == "Dr. A: over"


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"digest": "0" * 64}, "is another one than was shown"), ({"person": " "}, "needs the name of the person")],
)
def test_a_word_is_on_what_was_shown_and_by_somebody(
    fields: dict[str, str], said: str, inside: Browser, config: Path, door: Door
) -> None:
    sent = inside.post(f"/studies/{STUDY.name}/approve", data=form(door, **fields), headers={"origin": ORIGIN})
    assert sent.status_code == 409
    assert said in sent.text
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_no_ends_it(inside: Browser, config: Path, door: Door) -> None:
    inside.post(f"/studies/{STUDY.name}/decline", data=form(door), headers={"origin": ORIGIN})
    word = approval_of(journal(config), STUDY.digest())
    assert word is not None
    assert not word.approved
    assert "left by this site" in inside.get("/").text


def test_unknown_pages_studies_and_words(inside: Browser, door: Door) -> None:
    assert inside.get("/nowhere").status_code == 404
    assert "knows no study" in inside.get("/studies/other").text
    odd = inside.post(f"/studies/{STUDY.name}/delete", data=form(door), headers={"origin": ORIGIN})
    assert odd.status_code == 404
    assert inside.get("/static/door.py").status_code in (403, 404)
    assert inside.post("/login", headers={"origin": ORIGIN}).status_code == 405


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_requester_sees_weights_and_who_was_missing(config: Path, door: Door) -> None:
    kept = journal(as_requester(config))
    kept.write_site_state(SiteState(study_digest=STUDY.digest(), training_seed=1, model_version=2))
    metrics = Metrics(kept.folder / METRICS)
    absent = (Absence(site="c2", why=Absent.DECLINED, text="isolation: <b>too close</b>"),)
    for number, weight in ((1, 1.0), (2, 0.5)):
        metrics.append(
            RoundRecord(
                time_s=0,
                study=STUDY.name,
                site=REQUESTER,
                round=number,
                state=RoundEnd.RELEASED,
                model_version=number,
                took_part=(REQUESTER, "c1"),
                alphas=site_values([("c1", weight)]),
                absences=absent,
                isolation=0.42,
            )
        )
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        shown = client.get(f"/studies/{STUDY.name}").text
        assert "This site asks" in client.get("/").text
    assert "<svg" in shown
    assert "c2 (declined: isolation: &lt;b&gt;too close&lt;/b&gt;)" in shown
    assert "0.420" in shown
    assert "Approve</button>" not in shown
    assert "Leave this study" not in shown


def test_a_study_is_paused_and_resumed(inside: Browser, config: Path, door: Door) -> None:
    path = f"/studies/{STUDY.name}"
    inside.post(f"{path}/approve", data=form(door), headers={"origin": ORIGIN})
    assert "Pause this study" in inside.get(path).text
    nobody = inside.post(f"{path}/pause", data=form(door, person=" "), headers={"origin": ORIGIN})
    assert nobody.status_code == 409
    inside.post(f"{path}/pause", data=form(door, reason="<i>new scanner</i>"), headers={"origin": ORIGIN})
    assert journal(config).paused == "Dr. A: <i>new scanner</i>"
    shown = inside.get(path).text
    assert "Paused here by Dr. A: &lt;i&gt;new scanner&lt;/i&gt;." in shown
    assert "paused here" in inside.get("/now").text
    assert inside.post(f"{path}/resume", data=form(door), headers={"origin": "https://evil.example"}).status_code == 403
    assert journal(config).paused is not None
    inside.post(f"{path}/resume", data=form(door), headers={"origin": ORIGIN})
    assert journal(config).paused is None
    again = inside.post(f"{path}/resume", data=form(door), headers={"origin": ORIGIN})
    assert "is not paused" in again.text


def test_a_requester_can_be_made_to_leave_or_pause_nothing(config: Path, door: Door) -> None:
    kept = journal(as_requester(config))
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        for word, instead in (("leave", "moiety study cancel unit"), ("pause", "stop its agent to pause it")):
            sent = client.post(f"/studies/{STUDY.name}/{word}", data=form(door), headers={"origin": ORIGIN})
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


def test_the_privacy_budget_is_shown(config: Path, door: Door) -> None:
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        assert "has no budget" in client.get("/budget").text
    config.write_text(config.read_text() + "\n[policy]\nepsilon = 3.0\n")
    door = Door(PORT)
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        text = client.get("/budget").text
    assert "epsilon 3, of which 0.0 percent are used" in text
    assert "epsilon 0.000 at delta 1e-05" in text


@pytest.mark.parametrize("unit", ["record", "site"])
def test_what_was_spent_is_shown_study_by_study_with_its_unit(config: Path, door: Door, unit: str) -> None:
    """Whichever unit the site's own budget has: noise of the other one is not hidden."""
    config.write_text(config.read_text() + f'\n[policy]\nprivacy_unit = "{unit}"\ndelta = 1e-3\n')
    settings = load_settings(config)
    memory = budget_memory(settings.state_dir, load_identity(settings)[1])
    by_unit = {
        "record": (PrivacySpec(record_clip=1.0, noise_multiplier=2.0), Steps(0.16, 2.0, 1)),
        "site": (PrivacySpec(unit="site", noise_multiplier=3.0), Steps(1.0, 3.0, 1)),
    }
    for name, (privacy, _) in by_unit.items():
        study = STUDY.model_copy(update={"name": name, "privacy": privacy, "training": TrainingSpec(batch_size=16)})
        memory.charge(training_of(study, privacy, 100, 1), settings.policy)
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        text = " ".join(client.get("/budget").text.split())
    words = {"record": "of each single record", "site": "of the whole site"}
    for name, (_, steps) in by_unit.items():
        cells = f'<td>{words[name]}</td><td class="number">1</td>'
        assert f'<th scope="row">{name}</th>{cells}<td class="number">{epsilon_of([steps], 1e-3):.3f}</td>' in text
    assert f"epsilon {epsilon_of([by_unit[unit][1]], 1e-3):.3f} at delta 0.001, {words[unit]}" in text
    assert accountant() in text


@pytest.mark.parametrize(
    "privacy",
    [PrivacySpec(record_clip=1.0, noise_multiplier=2.0), PrivacySpec(unit="site", noise_multiplier=2.0)],
    ids=lambda privacy: privacy.unit,
)
def test_epsilon_is_read_before_a_study_is_approved(config: Path, door: Door, privacy: PrivacySpec) -> None:
    changed = {"name": "noised", "privacy": privacy, "rounds": 7, "rule": RuleSpec(name=RuleName.FEDAVG)}
    noised = study_of().model_copy(update=changed)
    kept = StudyJournal(config.parent / "state", "noised")
    kept.write(kept.folder / "study.json", sign(noised, REQUESTER, keys(REQUESTER).signing))
    spends = foreseen_epsilon(noised, ROSTER, SitePolicy().delta)
    assert spends is not None
    with browser(config, door) as client:
        client.get("/login", params={"token": door.token})
        text = client.get("/studies/noised").text
        german = client.get("/studies/noised", headers={"accept-language": "de"}).text
    assert f"<dt>epsilon</dt><dd>{spends.epsilon:.3f} at delta 1e-05, if all 7 rounds take place: of " in text
    assert {"record": "of one record at the site", "site": "of all that one site shares"}[privacy.unit] in text
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


def test_a_model_is_downloaded_with_its_card(inside: Browser, config: Path) -> None:
    made = study_of()
    kept = StudyJournal(config.parent / "state", made.name)
    kept.write(kept.folder / "study.json", sign(made, REQUESTER, keys(REQUESTER).signing))
    kept.save_model(5, np.arange(made.parameters.dimension, dtype=np.float32), made.digest())
    kept.write_site_state(SiteState(study_digest=made.digest(), training_seed=1, model_version=5))
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
    assert not list((config.parent / "state").glob("*.zip"))
    with browser(config, Door(PORT)) as stranger:
        assert stranger.get(f"/studies/{made.name}/models/last").status_code == 403


def test_what_left_is_summed(inside: Browser, config: Path) -> None:
    assert "Nothing yet." in inside.get("/ledger").text


def test_a_picture_escapes_names_and_leaves_out_what_is_no_number() -> None:
    drawn = lines_over_rounds("weights", {"<c1>": [(1, 0.5), (2, float("nan")), (3, 1.5)], "none": []})
    assert "&lt;c1&gt;" in drawn
    assert "nan" not in drawn
    assert lines_over_rounds("weights", {"c1": [(1, float("inf"))]}) == ""
