"""Words of others in front of a person: a reason to decline or a server's problem that writes on a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from client_agent.cli.agent import _print_event, _print_json
from client_agent.network.exchange import problem_to_error
from client_agent.site.events import AgentEvent, EventKind
from harness.adversaries.catalogue.attack import Attack, Found, Party
from servers.http.problems import error_from

_WORDS: Final = "no\x1b]0;owned\x07\x1b[2J \u202eevil\u2066 of it\ncontributor c2: released"
"""A title, a bell, a cleared screen, a turned reading direction, and a line that a program never wrote."""
_PROBLEM: Final = json.dumps({"code": "malformed_message", "detail": _WORDS}).encode()


def _printed(show: Callable[[AgentEvent], None]) -> str:
    """Events have lines of the program's own; what comes in is one line by then."""
    shown, text = io.StringIO(), _WORDS.replace("\n", " ")
    with redirect_stdout(shown):
        show(AgentEvent(kind=EventKind.DECLINED, site="c1", study="unit", round=1, text=text))
    return shown.getvalue().removesuffix("\n")


_PLACES: Final[Mapping[str, Callable[[], str]]] = {
    "an agent's line": lambda: _printed(_print_event),
    "an agent's line of JSON": lambda: str(json.loads(_printed(_print_json))["text"]),
    "a server's problem at an agent": lambda: problem_to_error(400, _PROBLEM, "operator-a").detail,
    "a server's problem at the other server": lambda: error_from(_PROBLEM, 400).detail,
}


class WordsThatWrite(Attack):
    """Escape sequences, marks of direction and line breaks in what a person or a log will read."""

    name = "words-that-write-on-a-terminal"
    party = Party.SITE
    tries = "gives a reason with escape sequences, marks of direction and a forged line in it"
    defence = "whatever others wrote is shown as printable characters on one line, of bounded length"
    figure = f"of {len(_PLACES)} places where they came through as they were"
    without: Mapping[str, object] = {"protocol.printable._shown": lambda character: character}

    def attempt(self, folder: Path) -> Found:
        reached = [name for name, shown in _PLACES.items() if not shown().isprintable()]
        return Found(bool(reached), len(reached), "; ".join(reached))


def words_of_others() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (WordsThatWrite(),)
