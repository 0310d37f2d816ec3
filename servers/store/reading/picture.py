"""A study's public view, read once a change and not once a caller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.messages.control import StudyView, news, shared_news
from protocol.messages.paths import EVERY_SITE
from servers.store.records import MailRecord


@dataclass(frozen=True)
class Shown:
    """One caller's view, and the digest of what a contributor acts on in it."""

    view: StudyView
    news: str


class StudyPicture:
    """A study at one cursor; sites that have the same letters see the same view."""

    def __init__(self, everybody: StudyView, mail: Sequence[MailRecord], number: int) -> None:
        """``mail``: by topic and sender. ``number``: of the study's changes when it was read."""
        self.everybody = everybody
        self.number = number
        self._shared_news = shared_news(everybody)
        self._mail: dict[str, list[tuple[str, MailRecord]]] = defaultdict(list)
        for one in mail:
            self._mail[one.recipient].append((f"{one.topic}/{one.sender}", one))
        self._shown: dict[tuple[str, ...], Shown] = {}

    def shown_to(self, caller: str) -> Shown:
        """The same for everybody with the same letters."""
        own, to_all = self._mail.get(caller, ()), self._mail.get(EVERY_SITE, ())
        of_caller = sorted((*own, *to_all), key=lambda named: (named[1].topic, named[1].sender))
        mail = tuple(name for name, one in of_caller if one.sender != caller)
        shown = self._shown.get(mail)
        if shown is None:
            view = self.everybody.model_copy(update={"mail": mail}) if mail else self.everybody
            shown = self._shown[mail] = Shown(view, news(self._shared_news, mail))
        return shown
