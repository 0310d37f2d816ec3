"""A site's page in a real browser: a person logs in, reads, approves; no accessibility violation on any page."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client_agent.net.ledger import Ledger, LedgerEntry
from client_agent.site.events import METRICS, Absence, Absent, RoundEnd, RoundRecord, append_record, site_values
from client_agent.study.approval import approval_of
from harness.federation.processes import fork_command
from tests.documents.terminal import environment, until_said
from tests.kit.browser import chromium, looked_at
from tests.kit.present import present
from tests.unit.client_agent.federation import REQUESTER
from tests.unit.client_agent.test_page import STUDY, as_requester, config, journal

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium

assert chromium  # a fixture of that module
assert config  # a fixture of that module


@contextmanager
def shown_page(config: Path) -> Iterator[str]:
    """The command in a process of its own; the address is what it prints."""
    log = config.parent / "page.log"
    log.touch()
    process = fork_command(["agent", "page", "--config", str(config), "--port", "0"], log, environment())
    try:
        until_said("token=", log, process=process)
        yield present(re.search(r"http://127\.0\.0\.1:\d+/login\?token=\S+", log.read_text()))[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@pytest.fixture
def address(config: Path) -> Iterator[str]:  # the fixture of that name
    Ledger(config.parent / "state" / "ledger.jsonl").close()
    with shown_page(config) as shown:
        yield shown


def test_a_person_reads_and_approves_a_study(chromium: Chromium, address: str, config: Path) -> None:
    page = chromium.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(address)
    looked_at(page, "studies")
    page.get_by_role("link", name=STUDY.name).click()
    assert page.get_by_role("heading", name="What it would open, and to whom").is_visible()
    looked_at(page, "waits")
    page.emulate_media(color_scheme="dark")
    looked_at(page, "waits-dark")
    page.emulate_media(color_scheme="light")
    page.set_extra_http_headers({"accept-language": "de-DE,de;q=0.9"})
    page.reload()
    assert page.get_by_text("in zwei Hälften, die zufällig aussehen").is_visible()
    looked_at(page, "waits-german")
    page.set_extra_http_headers({})
    page.reload()
    page.get_by_label("Your name").fill("Dr. A")
    page.get_by_label("Reason, such as").fill("permit 7")
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Leave this study").wait_for()
    looked_at(page, "approved")
    page.locator("#pauses").fill("Dr. A")
    page.locator("#pause-reason").fill("new scanner")
    page.get_by_role("button", name="Pause this study").click()
    page.get_by_role("button", name="Resume this study").wait_for()
    looked_at(page, "paused")
    assert journal(config).paused == "Dr. A: new scanner"
    page.get_by_role("button", name="Resume this study").click()
    page.get_by_role("button", name="Pause this study").wait_for()
    page.get_by_role("link", name="Privacy budget").click()
    looked_at(page, "budget")
    page.get_by_role("link", name="Deutsch").click()
    page.get_by_role("heading", name="Was dieser Standort verlangt").wait_for()
    looked_at(page, "studies-german")
    page.goto(f"{page.url}studies/{STUDY.name}")
    looked_at(page, "study-german")
    page.get_by_role("link", name="English").click()
    page.get_by_role("link", name="What left").wait_for()
    word = present(approval_of(journal(config), STUDY.digest()))
    assert (word.approved, word.person, word.reason) == (True, "Dr. A", "permit 7")
    page.get_by_role("link", name="What left").click()
    looked_at(page, "ledger")
    page.get_by_role("link", name="Check this site").click()
    assert page.get_by_role("row", name="versions").get_by_text("well").is_visible()
    looked_at(page, "check")
    assert not complaints
    stranger = chromium.new_context().new_page()
    stranger.goto(address)
    assert stranger.get_by_role("alert").inner_text().startswith("This address is good for one browser, once.")
    looked_at(stranger, "stranger")


def test_rounds_come_by_themselves(chromium: Chromium, config: Path) -> None:
    """At the requester, whose weights fall; a round that ends while the page is open is shown without a reload."""
    kept = journal(as_requester(config))
    metrics = kept.folder / METRICS
    _write_ledger(config.parent / "state" / "ledger.jsonl")
    for number in range(1, 9):
        append_record(metrics, _round(number))
    with shown_page(config) as address:
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.goto(address)
        page.goto(f"{address.split('/login')[0]}/studies/{STUDY.name}")
        assert page.get_by_role("img", name="each site's weight").is_visible()
        assert page.get_by_text("c3 (declined: isolation: too close)").first.is_visible()
        looked_at(page, "requester")
        append_record(metrics, _round(9))
        page.get_by_role("rowheader", name="9", exact=True).wait_for(timeout=10_000)
        narrow = chromium.new_context(
            viewport={"width": 360, "height": 780}, storage_state=page.context.storage_state()
        )
        small = narrow.new_page()
        small.goto(page.url)
        looked_at(small, "narrow")
        page.emulate_media(color_scheme="dark")
        looked_at(page, "requester-dark")
        small.goto(address.split("/login")[0])
        looked_at(small, "studies-narrow")


def _round(number: int) -> RoundRecord:
    return RoundRecord(
        time_s=float(number),
        study=STUDY.name,
        site=REQUESTER,
        round=number,
        state=RoundEnd.RELEASED,
        model_version=number,
        took_part=(REQUESTER, "c1", "c2"),
        absences=(Absence(site="c3", why=Absent.DECLINED, text="isolation: too close"),),
        alphas=site_values([("c1", 1.0 - 0.02 * number), ("c2", 1.0 - 0.1 * number), ("c3", 1.0)]),
        isolation=0.5,
        distances=site_values([("c1", 0.21), ("c2", 1.7)]),
        bytes_up=12_000,
    )


def _write_ledger(path: Path) -> None:
    ledger = Ledger(path)
    entry = LedgerEntry(
        time_s=1.0,
        server="operator-a",
        method="PUT",
        path="/x",
        purpose="contribution",
        status=200,
        body_sent_bytes=9,
        body_received_bytes=9,
        socket_sent_bytes=8_000_123,
        socket_received_bytes=1_234,
        tls_version="TLSv1.3",
    )
    ledger.append(entry)
    ledger.close()
