"""Sites that a study waits for before its first round, in words for the requester's people."""

from __future__ import annotations

from typing import Final

from client_agent.requester.study import RequesterStudy
from client_agent.site.awaited import Awaited, AwaitedSite, keep_awaited, minute
from client_agent.site.events import EventKind
from client_agent.study.hindrance import hindered_sites, read_hindrance
from protocol.errors import RefusedMessage, Unavailable, UnknownResource
from protocol.messages import paths
from protocol.messages.control import StudyView
from protocol.sharing import Side

_TELL_AGAIN_S: Final = 60.0
_DECLINED: Final = "it takes no part: its people declined the study"
_HINDERED: Final = (
    "it cannot begin: something there, its data or settings, must be mended by its people, whose agent's log says what"
)
_PAUSED: Final = "it is paused by its people, who resume it there"
_SILENT: Final = "does it run, have its people approved the study, is it among its 'studies'?"


class MissingSites:
    """Names them whenever that changes, and once a minute: since when, and why as far as the site says."""

    def __init__(self, owner: RequesterStudy) -> None:
        self._owner = owner
        self._since_s = owner.context.clock.now()
        self._told: tuple[str, float] = ("", 0.0)
        self._hindered: dict[str, str] = {}

    def tell(self, a: StudyView, b: StudyView) -> None:
        """One look at both servers' views."""
        self._read_hindrances(a)
        found = [(party.name, self._of(party.name, a, b)) for party in self._owner.context.roster.contributors]
        sites = tuple(AwaitedSite(site=name, why=why) for name, why in found if why)
        awaited, now = Awaited(since_s=self._since_s, sites=sites), self._owner.context.clock.monotonic()
        if not sites or (awaited.text == self._told[0] and now < self._told[1] + _TELL_AGAIN_S):
            return
        if awaited.text != self._told[0]:
            keep_awaited(self._owner.journal, awaited)
        self._told = (awaited.text, now)
        self._owner.event(EventKind.STUDY, None, awaited.text)

    def over(self) -> None:
        """The study waits no more, whoever came."""
        keep_awaited(self._owner.journal, None)

    def _of(self, site: str, a: StudyView, b: StudyView) -> str:
        """Why it is not ready; empty where it is."""
        lacking = [f"server {side}" for side, view in ((Side.A, a), (Side.B, b)) if site not in view.ready]
        if not lacking:
            return ""
        if site in self._hindered:
            return self._hindered[site]
        if len(lacking) == 1:
            return f"not ready at {lacking[0]}"
        return f"nothing heard of its agent in this study: {_SILENT}"

    def _read_hindrances(self, view: StudyView) -> None:
        """A letter that does not open is named once and counts for nothing."""
        contributors = {party.name for party in self._owner.context.roster.contributors}
        for sender in sorted(hindered_sites(view) & contributors - self._hindered.keys()):
            entry = f"{paths.HINDERED_TOPIC}/{sender}"
            if entry in self._owner.progress.unreadable:
                continue
            try:
                told = read_hindrance(self._owner, sender)
            except (UnknownResource, Unavailable):
                continue
            except RefusedMessage as refused:
                self._owner.put_aside(entry, paths.HINDERED_TOPIC, refused.detail)
                continue
            why = _DECLINED if told.declined else _PAUSED if told.paused else _HINDERED
            self._hindered[sender] = f"since {minute(told.since_s)} {why}"
