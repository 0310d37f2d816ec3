"""The round that measures updates and sums nothing, as the requester drives it (docs/protocol.md 8, 10).

Like any measured round up to the products. Then the servers end it, and the requester opens what both keep for it.
"""

from __future__ import annotations

from typing import Final

from client_agent.requester.measuring.opened import Opened
from client_agent.requester.measuring.own_noise import own_noise
from client_agent.requester.round import RequesterRound
from client_agent.requester.round_result import Settled
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import RoundEnd
from protocol.errors import ProtocolViolation, RefusedMessage, UnknownResource
from protocol.messages.control import RoundView

_LOST: Final = "one server lost its half of what is opened, and a model's updates are measured once"
_NOBODY: Final = "nobody was measured: this site, or every other one, failed its check"


class MeasuringRound(RequesterRound):
    """Drives a measurement to its end."""

    def ended(self, a: RoundView, b: RoundView) -> Settled | None:
        """Once both servers have closed it: what it opened is on disk before the round is settled."""
        if not self.opened_without_sum(a, b):
            return super().ended(a, b)
        opened, encoded = self._opened(a, b), self._encoded
        if encoded is None:
            raise ProtocolViolation(f"round {self._number} was closed without this requester's update")
        measured, reason = None, _LOST if opened is None else ""
        if opened is not None:
            reason = "" if opened.measured.took_part else _NOBODY
            noise = own_noise(self._owner, self._number).variance
            measured = opened.measured.model_copy(update={"requester_norm": encoded.norm, "variance": noise})
        return Settled(
            end=RoundEnd.CLOSED,
            attempt=a.attempt,
            reason=reason,
            declines=tuple(self._declines.values()),
            clipped=encoded.clipped,
            requester_norm=encoded.norm,
            measured=measured,
            failed_check=() if opened is None else opened.left_out,
        )

    def _opened(self, a: RoundView, b: RoundView) -> Opened | None:
        """None where a server has nothing to open."""
        try:
            return self._owner.retried(lambda: self._openings.opened(a, b, self._facts()))
        except UnknownResource:
            return None
        except RefusedMessage as refused:
            raise ProtocolViolation(f"round {self._number}: {refused.detail}") from refused


def after_measurement(owner: RequesterStudy, settled: Settled, number: int) -> dict[str, object]:
    """Return the requester's state after a measurement: the rule has learnt, or one more try is behind it."""
    progress = owner.progress
    changes: dict[str, object] = {"measured_rounds": progress.measured_rounds + 1}
    if settled.measured is not None and settled.measured.took_part:
        return changes | {"rule_state": owner.rule.apply(progress.rule_state, settled.measured), "measure_tries": 0}
    if settled.end is RoundEnd.SKIPPED:
        changes |= owner.after_skip(settled, number)
    return changes | {"measure_tries": progress.measure_tries + 1}
