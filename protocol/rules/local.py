"""Local training: no contributor at all; the baseline that every personalised model has to beat.

Needs:  nothing; no round is ever announced, the requester trains alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from protocol.errors import ProtocolViolation
from protocol.messages.round import ListedWeight
from protocol.parameters import Needs
from protocol.rules.interface import Declared, EqualRule, Measured, RuleState


@dataclass(frozen=True)
class Local(EqualRule):
    """Weight 0 for everybody, always."""

    START: ClassVar[float] = 0.0
    needs: Needs = Needs.NOTHING
    weights_never_rise: bool = True
    selects: bool = False

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Nothing to learn; ProtocolViolation if a contributor took part after all."""
        if measured.took_part:
            raise ProtocolViolation(f"rule 'local' lists no contributor, but {list(measured.took_part)} took part")
        return state

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return ()


def _made(_options: object, _batch_size: int, _grid: int) -> Local:
    return Local()


LOCAL: Final = Declared("local", _made, only_averages=True, alone=True)
