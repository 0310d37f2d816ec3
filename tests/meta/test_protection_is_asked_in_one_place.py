"""One table says what follows from a protection, one registry has its code; nothing else asks which one it is."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.messages.purpose import PROTECTION_PLANS, StudyProtection

ROOT = Path(__file__).parents[2]
ASKING = {ROOT / "protocol" / "messages" / "purpose.py", ROOT / "protocol" / "protection" / "registry.py"}
ASKED = re.compile(r"\.encrypted\b|(?:\bis|\bis not|==|!=) StudyProtection\b|StudyProtection\.[A-Z]+")


def test_every_protection_has_a_plan() -> None:
    assert set(PROTECTION_PLANS) == set(StudyProtection)


def test_no_other_code_asks_which_protection_it_is() -> None:
    assert ASKED.search("if study.protection is not StudyProtection.CKKS:")
    packages = ("protocol", "host", "servers", "client_agent", "harness")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    asking = {path for path in files if ASKED.search(path.read_text(encoding="utf-8"))}
    assert asking == ASKING
