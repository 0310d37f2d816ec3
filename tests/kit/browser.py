"""Debian's Chromium, driven by Playwright; the tests of a module that asks for it are skipped where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium


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
