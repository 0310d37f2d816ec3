"""Sites missing from a round, and why, as the requester knows it: nobody trains on some sites unnoticed."""

from __future__ import annotations

from client_agent.requester.round_result import Refused, Settled
from client_agent.requester.state import RequesterState
from client_agent.site.events import Absence, Absent
from protocol.messages.control import Announcement
from protocol.text import printable


def absences(
    contributors: tuple[str, ...], state: RequesterState, announcement: Announcement, settled: Settled
) -> tuple[Absence, ...]:
    """Return the roster's contributors, in its order, whose vector is not in the round's result.

    ``state`` is as it was when the round was planned, but for the sites that are given up since.
    """
    took_part = _in_round(settled)
    refused = {one.site: one for one in settled.declines}
    return tuple(
        _absence(site, state, announcement, settled, refused.get(site))
        for site in contributors
        if site not in took_part
    )


def _absence(
    site: str, state: RequesterState, announcement: Announcement, settled: Settled, refused: Refused | None
) -> Absence:
    if refused is not None:
        return Absence(site=site, why=Absent.DECLINED, text=printable(f"{_short(refused)}: {refused.reason}"))
    if site in _failed(settled):
        return Absence(site=site, why=Absent.FAILED_CHECK)
    if site in announcement.listed:
        return Absence(site=site, why=Absent.NO_CONTRIBUTION)
    before = next((one for one in state.given_up if one.site == site), None)
    if before is not None:
        return before
    if site in state.dropped:
        return Absence(site=site, why=Absent.GIVEN_UP)
    known = {one.site for one in state.welcomed}
    return Absence(site=site, why=Absent.NOT_LISTED if site in known else Absent.NOT_READY)


def given_up(declines: tuple[Refused, ...], sites: list[str], round_number: int) -> tuple[Absence, ...]:
    """Sites that are not listed any more, with what they said."""
    return tuple(
        Absence(
            site=one.site,
            why=Absent.GIVEN_UP,
            text=printable(f"since round {round_number}, {_short(one)}: {one.reason}"),
        )
        for one in declines
        if one.site in sites
    )


def _short(refused: Refused) -> str:
    return refused.code.value if refused.clause is None else refused.clause.value


def _in_round(settled: Settled) -> frozenset[str]:
    if settled.past is not None:
        return frozenset(settled.past.release_set.message.sites)
    return frozenset() if settled.measured is None else frozenset(settled.measured.took_part)


def _failed(settled: Settled) -> tuple[str, ...]:
    return settled.failed_check if settled.past is None else settled.past.release_set.message.failed_check
