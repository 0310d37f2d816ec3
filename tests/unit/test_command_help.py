"""``--help`` of every command: one line that begins with a verb, one example that works, and nothing heavy loaded."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import moiety
from harness.reference.pages import Command, commands
from tests.documents.test_every_command_is_known import found

ROOT: Final = Path(__file__).parents[2]
_HEAVY: Final = """
    alembic fastapi httpx matplotlib pandas pyarrow pydantic_settings ray scipy sklearn sqlalchemy torch
    protocol.messages.control
"""
HEAVY: Final = frozenset(_HEAVY.split())
"""Packages, and a module with all messages, that take from a tenth of a second to some seconds to import."""
ALL: Final = tuple(commands())
_WORDS: Final = """
    Add Admit Allow Answer Apply Approve Cancel Change Check Claim Compare Create Decline Delete Drain Estimate
    Export Falsify Invert Invite Join List Make Measure Merge Pair Pause Predict Print Rank Remove
    Renew Resume Run Serve Show Sign Subtract Sum Tell Verify Watch Write
"""
VERBS: Final = frozenset(_WORDS.split())


def words_of(command: Command) -> str:
    """The group's default command is called without its name."""
    return command.words.replace("moiety simulate study", "moiety simulate")


@pytest.mark.parametrize("command", ALL, ids=lambda one: one.words)
def test_help_is_one_line_that_begins_with_a_verb_and_one_example(command: Command) -> None:
    text = command.run.__doc__ or ""
    first, *rest = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    assert first.split()[0] in VERBS, f"{first!r}: a verb, which stands in VERBS"
    assert len(first) <= 72
    assert first.endswith(".")
    (example,) = (part for part in rest if part.startswith("Example: "))
    assert example == rest[-1]
    typed = example.removeprefix("Example: ")
    assert typed.startswith(words_of(command) + " ") or typed == words_of(command)
    target, left = found(shlex.split(typed)[1:])
    known = {name for one in target.params for name in (*one.opts, *one.secondary_opts)}
    assert {word for word in left if word.startswith("--")} <= known


def test_every_verb_is_used() -> None:
    assert {(command.run.__doc__ or "").split()[0] for command in ALL} == VERBS


def test_help_loads_nothing_heavy() -> None:
    """One subcommand after the other in one process, which ends at the first one that does."""
    program = f"""
import moiety, sys
for name in {[None, *moiety.SUBCOMMANDS]!r}:
    moiety.build(name)
    if found := {set(HEAVY)!r} & set(sys.modules):
        sys.exit(f"{{name}} loads {{' '.join(found)}}")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
