"""``python -m tests.frozen.record``: write down the facts as they are now, one file each."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.frozen.facts import all_facts

RECORDED: Final = Path(__file__).parent / "recorded"
DEPTH: Final = 4


def text_of(fact: Any, depth: int = DEPTH) -> str:
    """A fact as it stands in its file: sorted keys, a line for each of the upper ones."""
    if not isinstance(fact, dict) or not fact or not depth:
        return json.dumps(fact, sort_keys=True, ensure_ascii=False)
    indent = " " * (DEPTH - depth)
    lines = (f"{indent} {json.dumps(key)}: {text_of(fact[key], depth - 1)}" for key in sorted(fact))
    return "{\n" + ",\n".join(lines) + "\n" + indent + "}"


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        facts = all_facts(Path(folder))
    for path in RECORDED.glob("*.json"):
        if path.stem not in facts:
            path.unlink()
    for name, fact in facts.items():
        path, text = RECORDED / f"{name}.json", text_of(fact) + "\n"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}: {'as it was' if text == before else 'changed'}\n")


if __name__ == "__main__":
    main()
