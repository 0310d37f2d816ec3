"""Decisions of both sides of a round in some thousand seeded rounds: in which situation what, and how often."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from protocol.messages.control import Announcement
from protocol.rounds.side_a import Act, End, Lock, Step
from tests.unit.rounds import traces_a, traces_b

TRACES_A: Final = 6000
TRACES_B: Final = 2400


def decisions() -> dict[str, Any]:
    """Side -> situation -> decision -> how often; ``digest`` covers their order and all numbers in them."""
    return {
        **_of(traces_a.ANNOUNCED, "", TRACES_A, TRACES_B),
        **_of(traces_a.TAGGED, "_with_tags", TRACES_A // 3, TRACES_B // 2),
    }


def _of(announced: tuple[Announcement, ...], name: str, traces_at_a: int, traces_at_b: int) -> dict[str, Any]:
    at_a = (one for seed in range(traces_at_a) for one in traces_a.Trace(seed, announced).run())
    at_b = (one for seed in range(traces_at_b) for one in traces_b.Trace(seed, announced).run())
    return {
        f"side_a{name}": _counted((one.situation, named(one.step), in_full(one.step)) for one in at_a),
        f"side_b{name}": _counted((one.message.KIND, one.said, "") for one in at_b),
    }


def named(step: Step) -> str:
    match step:
        case Act():
            return step.name
        case End(outcome):
            return f"End: {outcome.cause}"
        case _:
            return type(step).__name__


def in_full(step: Step) -> str:
    match step:
        case End(outcome):
            return (
                f"{outcome.round} {outcome.attempt} {outcome.outcome} {outcome.found} {outcome.needed} {outcome.code}"
            )
        case Lock(agreed):
            return f"{agreed.attempt} {agreed.sites} {[c.commitment_a for c in agreed.contributions]}"
        case Act():
            return ""
        case _:
            return str(step)


def _counted(lines: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    digest = hashlib.sha256()
    for situation, decision, details in lines:
        counts[situation][decision] += 1
        digest.update(f"{situation}: {decision} {details}\n".encode())
    return {"digest": digest.hexdigest(), "decided": {situation: dict(of) for situation, of in counts.items()}}
