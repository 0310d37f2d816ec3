"""What ``moiety bench envelopes`` found, as its JSON file holds it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from protocol.sharing import Side


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spread(_Result):
    """The median of the repeats, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.quantile(np.asarray(values, dtype=np.float64), (0.25, 0.5, 0.75))
        return cls(median=float(median), low=float(low), high=float(high))


class RequestCost(_Result):
    """One request and its answer: CPU milliseconds at either end, TLS included; bytes at the agent's socket."""

    server_ms: Spread
    agent_ms: Spread
    bytes_up: Spread
    bytes_down: Spread


class ViewCost(_Result):
    """A view of so many sites, ``view_bytes`` long: asked for in an envelope, asked for bare, and the difference.

    ``added`` is taken repeat by repeat, so that what slows both down is in neither.
    """

    sites: int
    view_bytes: int
    enveloped: RequestCost
    bare: RequestCost
    added: RequestCost


class ControlTraffic(_Result):
    """Requests of control messages at one server, one site and round.

    Not counted: shares, sums, checkpoints, and asking for new studies, which the clock makes, not the round.
    ``who``: the requester, or the mean over the contributors. Bytes are at the site's socket, TLS included.
    """

    who: str
    side: Side
    requests: float
    bytes_up: float
    bytes_down: float
    requests_by_purpose: dict[str, float]


class EnvelopesBenchmark(_Result):
    """What signing and sealing add to a request, and how many requests there are.

    ``load`` is the machine's mean load over the minute before. ``rounds`` are those in which requests were counted.
    """

    sites: int
    rounds: int
    requests: int
    repeats: int
    command: str
    date: str
    machine: str
    load: float
    views: tuple[ViewCost, ...]
    control: tuple[ControlTraffic, ...]
    versions: dict[str, str]


def envelopes_text(result: EnvelopesBenchmark) -> str:
    """The figures, one a line."""
    lines = [
        f"{result.sites} contributors and the requester, {result.rounds} rounds counted; medians and quartiles of "
        f"{result.repeats} times {result.requests} requests, load {result.load:.1f}, {result.machine}"
    ]
    for view in result.views:
        lines.append(f"a view of {view.sites:,} sites, {view.view_bytes:,} bytes, enveloped: {_cost(view.enveloped)}")
        lines.append(f"the same, bare: {_cost(view.bare)}")
        lines.append(f"added: {_cost(view.added)}")
    lines.extend(_control(one, result.views[0].added) for one in result.control)
    return "\n".join(lines)


def _cost(cost: RequestCost) -> str:
    server, agent = _ms(cost.server_ms), _ms(cost.agent_ms)
    up, down = cost.bytes_up.median, cost.bytes_down.median
    return f"CPU ms server {server}, agent {agent}; bytes {up:,.0f} up, {down:,.0f} down"


def _ms(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _control(one: ControlTraffic, added: RequestCost) -> str:
    """What envelopes would add to a round is what they add to the smallest view, so many times."""
    up, down = one.requests * added.bytes_up.median, one.requests * added.bytes_down.median
    kinds = ", ".join(f"{purpose} {count:.1f}" for purpose, count in one.requests_by_purpose.items())
    return (
        f"{one.who}, server {one.side.value}, per round: {one.requests:.1f} control requests ({kinds}), "
        f"{one.bytes_up / 1e3:.1f} kB up, {one.bytes_down / 1e3:.1f} kB down in a session; an envelope for each would "
        f"add {up / 1e3:.1f} kB up, {down / 1e3:.1f} kB down, server {one.requests * added.server_ms.median:.1f} ms, "
        f"agent {one.requests * added.agent_ms.median:.1f} ms"
    )
