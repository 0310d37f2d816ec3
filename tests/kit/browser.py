"""Debian's Chromium, driven by Playwright, and what must hold of every page.

No violation of axe's rules, and nothing wider than the window; MOIETY_TEST_PICTURES names a folder for pictures of the
pages. Tests that ask for the browser are skipped where it is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

PICTURES: Final = os.environ.get("MOIETY_TEST_PICTURES")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    sync_api = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("axe_playwright_python.sync_playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def looked_at(page: Page, name: str) -> None:
    """Assert that nobody is kept out of the page; a picture where somebody asks for it."""
    from axe_playwright_python.sync_playwright import Axe

    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    wide, window = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= window, f"{name} is {wide} wide in a window of {window}"
