"""Both servers' products in one process, with correlations from either source (docs/protocol.md 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from protocol.arithmetic.prg import derive
from protocol.mpc import measurement
from protocol.mpc.correlation import Halves, dealer_pair, open_ot_sessions, ot_batch
from protocol.mpc.ot.session import LengthsList
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side

SourceName: TypeAlias = Literal["ot", "dealer"]
DrawCorrelations: TypeAlias = Callable[[LengthsList, str], Halves]
"""Fresh halves for A and B, one per contributor; the label names round and attempt and is used once."""


def correlations_from(source: SourceName, seed: bytes) -> DrawCorrelations:
    """Both sides of ``source``; an OT session is opened at once and serves every later batch."""
    if source == "dealer":
        return lambda lengths_list, label: dealer_pair(lengths_list, derive(seed, f"dealer {label}"))
    receiver, sender = open_ot_sessions(
        derive(seed, "ot session"), derive(seed, "ot session opened by a"), derive(seed, "ot session opened by b")
    )
    return lambda lengths_list, label: ot_batch(receiver, sender, lengths_list, derive(seed, f"ot b {label}"))


@dataclass(frozen=True)
class Measuring:
    """What both servers and the requester know of a measured round; ``context`` tells its zero sharings from others."""

    parameters: StudyParameters
    numerators: Mapping[str, int]
    opens: Needs
    zero_key: bytes = field(repr=False)
    context: str

    def opened(
        self, operands: Mapping[Side, list[measurement.Operands]], halves: Halves
    ) -> tuple[measurement.OpenedSite, ...]:
        """Each server masks, multiplies and refreshes its shares; the requester opens them."""
        half_of = dict(zip(Side, halves, strict=True))
        masked = {
            side: [measurement.masked(one, half) for one, half in zip(operands[side], half_of[side], strict=True)]
            for side in Side
        }
        shares = {
            side: [
                measurement.opening_share(side, one, theirs, half, self.zero_key, self.context, self.parameters)
                for one, theirs, half in zip(operands[side], masked[side.other], half_of[side], strict=True)
            ]
            for side in Side
        }
        return measurement.open_all(shares[Side.A], shares[Side.B], self.numerators, self.parameters, self.opens)
