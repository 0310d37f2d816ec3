"""A round that the servers do not end: they may not reach each other, or one is away. Said first, given up later."""

from __future__ import annotations

from typing import Final

from client_agent.requester.study import RequesterStudy
from protocol.messages.control import Announcement, RoundView

TOLD_AFTER_S: Final = 900.0


class RoundStuckError(Exception):
    """The study ends: what was waited for, and since when."""


class StuckRound:
    """Watches one round. Time counts once the round has closed, and anew with every step that either server shows.

    Reveals:  to the servers, with the study's end, which of them showed what for how long
    """

    def __init__(self, owner: RequesterStudy, announcement: Announcement) -> None:
        self._owner = owner
        self._announcement = announcement
        self._shown: object = None
        self._since_s = owner.context.clock.monotonic()

    def look(self, a: RoundView | None, b: RoundView | None) -> None:
        """Look at what both servers show now. Raises: RoundStuckError, after the time that the settings say"""
        clock, number = self._owner.context.clock, self._announcement.round
        now = clock.monotonic()
        shown = (_shown(a), _shown(b))
        if shown != self._shown or clock.now() < self._announcement.closes_at_s:
            self._shown, self._since_s = shown, now
        waited_s = now - self._since_s
        if waited_s < TOLD_AFTER_S and waited_s < self._owner.context.stuck_timeout_s:
            return
        stands = f"server a shows {shown[0]} and server b {shown[1]}"
        if waited_s >= self._owner.context.stuck_timeout_s:
            raise RoundStuckError(
                f"the servers did not end round {number} in the {waited_s / 3600:.1f} hours after it closed or after "
                f"they last went on: {stands}"
            )
        self._owner.problem_once(
            number,
            f"round {number} has closed and {stands} without anything new: the servers may not reach each other; ask "
            "both operators. The study waits for them, and ends as failed if they do not go on",
        )


def _shown(view: RoundView | None) -> str:
    """Describe the state of a server's round for a person."""
    return "no round" if view is None else f"round {view.round}, attempt {view.attempt}, {view.state.value}"
