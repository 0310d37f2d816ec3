"""Hostile messages to two real servers in the middle of a round: whatever is sent, it is refused and changes nothing.

Every message comes at the point of a round where it would count. It has reached something when a server takes it, when
anything durable is another than before at either server or in another site's view, when the refusal is not the one
that says what is wrong, or when the round does not go on to the exact sum of everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted_rounds import SITES, SMALL, STRANGER, Pair, Phase, refusals
from harness.federation.memory.servers import ServersInMemory
from protocol.errors import ErrorCode
from protocol.parameters import Needs

_PROBLEM = {"type", "title", "status", "detail", "code"}


@dataclass(frozen=True)
class Row:
    """One hostile message and the refusal that it gets; without a code, any refusal that is the sender's fault.

    ``recorded``: the server keeps a note of who sent it.
    """

    name: str
    act: Act
    status: int
    code: ErrorCode | None
    phase: Phase = Phase.COLLECTING
    recorded: bool = False
    dimension: int = SMALL
    says: str = ""


@dataclass(frozen=True)
class Words:
    """What people read of a family of messages: its name, whose they are, what they try, what should hold."""

    name: str
    party: Party
    tries: str
    defence: str


class Refused(Attack):
    """Several messages that one defence refuses."""

    figure = "hostile messages that a server took, or that changed something"

    def __init__(self, words: Words, without: Mapping[str, object], rows: Sequence[Row]) -> None:
        self.name, self.party, self.tries, self.defence = words.name, words.party, words.tries, words.defence
        self.without, self.rows = without, tuple(rows)

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                reached = [found for rows in _together(self.rows) for found in _reached(pair, rows)]
            finally:
                pair.close()
        return Found(bool(reached), len(reached), "; ".join(reached))


def _together(rows: Sequence[Row]) -> list[list[Row]]:
    """Messages that the same round can refuse one after the other, since a refused one leaves it as it was."""
    found: dict[tuple[Phase, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.phase, row.dimension), []).append(row)
    return list(found.values())


def _reached(pair: Pair[ServersInMemory], rows: Sequence[Row]) -> Iterator[str]:
    """What each message reached, if anything; whatever became of one, the next finds an honest round."""
    opened = None
    for row in rows:
        opened = opened or _at(pair, row)
        before, kept = opened.everything_stored(), refusals(pair.federation)
        answer = row.act(opened)
        wrong = _wrong_answer(answer, row) or _changed(opened, before, kept, row)
        if wrong:
            yield f"{row.name}: {wrong}"
            pair.new_study(row.dimension)
            opened = None
    if opened is not None:
        opened.finish()
        if opened.agreed != SITES:
            yield f"the round went on with {', '.join(opened.agreed)} alone"


def _at(pair: Pair[ServersInMemory], row: Row) -> Round:
    """A new round, up to the point at which a message is sent."""
    queried = row.phase in (Phase.LOCKED, Phase.MEASURED)
    opened = pair.round(row.dimension, opens=Needs.DISTANCES if queried else Needs.NOTHING)
    opened.advance(row.phase)
    return opened


def _wrong_answer(answer: httpx.Response, row: Row) -> str:
    if answer.is_success:
        return "taken"
    if not answer.headers.get("content-type", "").endswith("json") and not answer.content.startswith(b"{"):
        return f"refused otherwise, by {answer.status_code} and no problem"
    body = answer.json()
    told = (answer.status_code, body.get("status"), body.get("code"))
    if row.code is None:
        return "" if answer.is_client_error else f"refused otherwise, by {answer.status_code}"
    if set(body) != _PROBLEM or told != (row.status, row.status, row.code):
        return f"refused otherwise, by {answer.status_code} {body.get('code')}"
    return "" if row.says in body["detail"] else f"refused without {row.says!r}"


def _changed(opened: Round, before: list[object], kept: list[tuple[str, str, str]], row: Row) -> str:
    if opened.everything_stored() != before:
        return "refused, and changed what is stored or seen"
    noted = [code for _, _, code in refusals(opened.federation)[len(kept) :]]
    return "" if noted == [row.code] * row.recorded else f"refused, and recorded as {noted}"
