"""An operator's page in a real browser: log in, look around, log out; no accessibility violation on any page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import uvicorn

from harness.federation.memory.federation import InMemoryFederation
from protocol.errors import ErrorCode
from protocol.sharing import Side
from servers.app import create_operations
from servers.page.password import make_password
from tests.kit.browser import chromium
from tests.kit.pictures import looked_at
from tests.ports import more_free_ports
from tests.unit.servers.test_operator_page import federation

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium

assert chromium  # a fixture of that module
assert federation  # a fixture of that module


@pytest.fixture(scope="module")
def address(federation: InMemoryFederation) -> Iterator[str]:  # the fixture of that name
    """Server A's own port, served as in a process but by a thread."""
    (port,) = more_free_ports(1)
    server = uvicorn.Server(
        uvicorn.Config(create_operations(federation.servers.apps[Side.A]), port=port, log_config=None, lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port}/page/"
    server.should_exit = True
    thread.join(30)


def test_an_operator_logs_in_and_looks_around(chromium: Chromium, address: str, federation: InMemoryFederation) -> None:
    server = federation.servers.apps[Side.A].state.server
    server.metrics.refusals.labels(ErrorCode.BAD_SIGNATURE.value).inc()
    server.recent.note_refusal(ErrorCode.BAD_SIGNATURE, "the signature is from 2026-11-23 10:00, a minute too old")
    password = make_password(server.settings.data_dir)
    page = chromium.new_context(viewport={"width": 1100, "height": 900}).new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(address)
    looked_at(page, "operator-login")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Studies").wait_for()
    looked_at(page, "operator-now")
    page.get_by_role("link", name="seen").click()
    page.get_by_role("heading", name="Study seen").wait_for()
    looked_at(page, "operator-study")
    small = page.context.new_page()
    small.set_viewport_size({"width": 360, "height": 780})
    for path, name in (("", "now"), ("studies/seen", "study"), ("roster", "roster"), ("refused", "refused")):
        small.goto(address + path)
        looked_at(small, f"operator-{name}-narrow")
        small.emulate_media(color_scheme="dark")
        looked_at(small, f"operator-{name}-dark")
        small.emulate_media(color_scheme="light")
    page.get_by_role("link", name="Roster").click()
    looked_at(page, "operator-roster")
    page.get_by_role("link", name="Refused").click()
    looked_at(page, "operator-refused")
    small.goto(address)
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Password").wait_for()
    small.get_by_label("Password").wait_for(timeout=15_000)  # a page that was open notices by itself
    page.goto(address)
    assert page.get_by_label("Password").is_visible()
    assert not complaints


def test_another_page_in_the_same_browser_changes_nothing(
    chromium: Chromium, address: str, federation: InMemoryFederation
) -> None:
    """A form of a foreign origin, in the browser in which the operator is logged in, ends no session."""
    password = make_password(federation.servers.apps[Side.A].state.server.settings.data_dir)
    context = chromium.new_context()
    page = context.new_page()
    page.goto(address)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Studies").wait_for()
    foreign = context.new_page()
    foreign.set_content(f'<form method="post" action="{address}logout"><button>Win</button></form>')
    foreign.get_by_role("button", name="Win").click()
    foreign.get_by_role("alert").wait_for()
    page.goto(address)
    assert page.get_by_role("button", name="Log out").is_visible()
