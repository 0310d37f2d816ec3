"""The commands that documents tell people to type, one by one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLD_OF = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAST = ("docs/adr", "docs/changelog.md")
"""Records of decisions and changes: their commands are those of their time."""


def documents() -> list[str]:
    """Every document whose commands must work now."""
    inside = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*TOLD_OF, *(name for name in inside if not name.startswith(PAST))]


def commands_of(document: str) -> list[str]:
    """Every command of its blocks of shell lines, without comments; what goes on over several lines is one."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = [found[2] for found in re.finditer(r"^( *)```sh\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)]
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    bare = (re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in lines)
    return [line for line in bare if line]


def moiety_calls(line: str) -> list[list[str]]:
    """The calls of ``moiety`` in a shell line: its words after the name."""
    read = shlex.shlex(line.replace("$(", " ; ").replace("`", " ; "), posix=True, punctuation_chars=";&|<>")
    read.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in read:
        if set(word) <= set(";&|") or word == "do":
            calls.append([])
        elif set(word) <= set("<>"):
            calls[-1].append(">")
        elif calls[-1] or not re.fullmatch(r"\w+=.*", word):
            calls[-1].append(word)
    own = [call for call in calls if call and call[0].rpartition("/")[2] == "moiety"]
    return [call[1 : call.index(">") if ">" in call else None] for call in own]


def moiety_mentions(document: str) -> list[str]:
    """The code spans of the running text that begin with ``moiety``."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`(moiety [^`]+)`", text)
