"""What the site whose update is asked about makes of being left out: it goes by its policy's clause."""

from __future__ import annotations

from harness.adversaries.falsifying.measured import SITES, VICTIM
from harness.adversaries.scripted_agents import study
from protocol.errors import PolicyRefusal
from protocol.parameters import Needs
from protocol.policy import clauses
from protocol.policy.memory import SiteMemory, remember_left_out
from protocol.wire.messages import Announcement


class Victim:
    """The victim's memory of being left out. Under a rule that selects, the clause on it is off."""

    def __init__(self, *, selects: bool) -> None:
        self._selects = selects
        self._memory = SiteMemory()

    def takes_part(self, number: int) -> bool:
        """Whether it agrees to be listed in round ``number``."""
        announced = Announcement(
            study_digest=study().digest(),
            round=number,
            listed=SITES[1:],
            least_contributors=3,
            opens=Needs.NOTHING,
            model_version=number,
            model_digest="00" * 32,
            weight_list_digest="11" * 32,
            closes_at_s=10**9,
        )
        try:
            if not self._selects:
                clauses.check_left_out_twice(announced, self._memory)
        except PolicyRefusal:
            return False
        return True

    def saw(self, number: int, released: tuple[str, ...], failed: tuple[str, ...]) -> None:
        """A release set with the requester's word on who failed a check."""
        self._memory = remember_left_out(self._memory, number, SITES, released, failed, own=VICTIM)
