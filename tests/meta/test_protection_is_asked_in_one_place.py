"""What a protection means is in its table; no other code asks which one it is."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.protection.plan import PLANS, StudyProtection

ROOT = Path(__file__).parents[2]
ASKED = re.compile(r"(?:\bis|\bis not|==|!=) StudyProtection\.[A-Z]+")


def test_every_protection_has_a_plan() -> None:
    assert set(PLANS) == set(StudyProtection)


def test_no_other_code_asks_which_protection_it_is() -> None:
    assert ASKED.search("if study.protection is not StudyProtection.CKKS:")
    packages = ("protocol", "host", "servers", "client_agent", "harness")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    asking = [str(path.relative_to(ROOT)) for path in files if ASKED.search(path.read_text(encoding="utf-8"))]
    assert asking == []
