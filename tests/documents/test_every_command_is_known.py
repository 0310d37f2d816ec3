"""Whatever a document tells people to type is understood by the command line as it is: commands, options, values."""

from __future__ import annotations

import functools
import re
from itertools import product
from typing import Any

import pytest
from typer.main import get_command

from moiety import SUBCOMMANDS, build
from tests.documents.lines import commands_of, documents, moiety_calls, moiety_mentions


class Understood(Exception):
    """Raised in place of what the command does."""


def _instead(**_given: Any) -> None:
    raise Understood


@functools.cache
def command_line(chosen: str | None) -> Any:
    return get_command(build(chosen))


def found(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``words`` call, and the words that are left to it."""
    chosen = next((one for one in (" ".join(words[:2]), words[0]) if one in SUBCOMMANDS), None)
    command = command_line(chosen)
    left = list(words)
    while left and hasattr(command, "commands") and not left[0].startswith("-"):
        command = command.get_command(None, left.pop(0))
        if command is not None and command.name == "simulate" and not (left and left[0] in command.commands):
            left.insert(0, "study")  # as the command line does it
    return command, left


def test_documents_tell_many_commands() -> None:
    told = [call for document in documents() for line in commands_of(document) for call in moiety_calls(line)]
    assert len(told) > 100
    assert len({" ".join(call[:2]) for call in told}) > 40


@pytest.mark.parametrize("document", [one for one in documents() if commands_of(one)])
def test_every_command_of_a_block_is_understood(document: str) -> None:
    for line in commands_of(document):
        for call in moiety_calls(line):
            command, left = found([re.sub(r"^\$\w+$", "1", word) for word in call])  # the shell knows its variables
            assert command is not None, f"{document}: no such command: moiety {' '.join(call)}"
            command.callback = _instead
            with pytest.raises(Understood):
                command(args=left, standalone_mode=False, prog_name="moiety")


@pytest.mark.parametrize("document", [one for one in documents() if moiety_mentions(one)])
def test_every_command_in_the_text_is_there_with_its_options(document: str) -> None:
    for mention in moiety_mentions(document):
        words = re.sub(r"[\[\]]", "", mention).split()[1:]
        for first in product(*(word.split("|") for word in words[:3])):
            _check(f"{document}: `{mention}`", [*first, *words[3:]])


def _check(where: str, words: list[str]) -> None:
    if words[0].startswith("--") or any(word.isupper() or word == "..." for word in words[:2]):
        return
    command, left = found([word for word in words if word])
    assert command is not None, f"{where}: no such command"
    options = {name for one in getattr(command, "params", ()) for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    for option in (word.split("=")[0].rstrip(".,") for word in left if word.startswith("--")):
        for one in option.split("|"):
            assert one in options, f"{where}: no option {one}"
