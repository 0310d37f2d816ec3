"""Pages in a browser: no violation of axe's rules, nothing wider than the window, and pictures for people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES: Final = os.environ.get("MOIETY_TEST_PICTURES")
"""A folder for pictures of every page, for a person to look at."""


def looked_at(page: Page, name: str) -> None:
    """Assert that nobody is kept out of the page; a picture where somebody asks for it."""
    from axe_playwright_python.sync_playwright import Axe

    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    wide, window = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= window, f"{name} is {wide} wide in a window of {window}"
