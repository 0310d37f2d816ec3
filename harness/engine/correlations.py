"""Correlations for both servers in one process, from either source (docs/protocol.md 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from protocol.arithmetic.prg import derive
from protocol.mpc.correlation import (
    CorrelationHalf,
    LengthsList,
    OtSourceA,
    OtSourceB,
    converse,
    dealer_pair,
    open_ot_sessions,
)

SourceName: TypeAlias = Literal["ot", "dealer"]
Halves: TypeAlias = tuple[list[CorrelationHalf], list[CorrelationHalf]]
DrawCorrelations: TypeAlias = Callable[[LengthsList, str], Halves]
"""Fresh halves for A and B, one a contributor; the label names round and attempt and is used once."""


def correlations_from(source: SourceName, seed: bytes) -> DrawCorrelations:
    """Both sides of ``source``; an OT session is opened at once and serves every later batch."""
    if source == "dealer":
        return lambda lengths_list, label: dealer_pair(lengths_list, derive(seed, f"dealer {label}"))
    receiver, sender = open_ot_sessions(
        derive(seed, "ot session"), derive(seed, "ot session opened by a"), derive(seed, "ot session opened by b")
    )

    def draw(lengths_list: LengthsList, label: str) -> Halves:
        return converse(
            OtSourceA(receiver).draw(lengths_list, derive(seed, f"ot a {label}")),
            OtSourceB(sender).draw(lengths_list, derive(seed, f"ot b {label}")),
        )

    return draw
