"""Digest of the part of a study's view that a contributor acts on: it waits for a change of that alone
(docs/protocol.md 4).

A round passes through states in which a contributor does nothing: what happens between two servers, and what the
requester says to them. A view for each of those cost every site most of its requests. So a site says which news it
has, and the server answers once there are others; the digest tells a server nothing but what it sent itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from protocol.purpose import RoundState
from protocol.wire import paths
from protocol.wire.messages import RoundView, StudyView

_ENDED: Final = frozenset({RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED})
_UNDER_WAY: Final = RoundState.ANNOUNCED
_WEIGHTS: Final = paths.fill(paths.WEIGHTS_TOPIC, round="")
"""Weight lists come before the announcement of their round, which is the news."""


def shared_news(view: StudyView) -> str:
    """Return the digest of what every contributor is shown alike: hex SHA-256, computed once for all callers."""
    shown = {"cursor": 0, "ready": (), "mail": (), "current": _acted_on(view.current)}
    return view.model_copy(update=shown).digest()


def news(shared: str, mail: Sequence[str]) -> str:
    """Return the digest of one site's whole view: ``shared_news`` of it, and its ``mail``. -> hex SHA-256"""
    letters = [entry for entry in mail if not entry.startswith(_WEIGHTS)]
    return hashlib.sha256("\n".join([shared, *letters]).encode()).hexdigest()


def news_of(view: StudyView) -> str:
    """Return the digest of a view that a site holds. -> hex SHA-256"""
    return news(shared_news(view), view.mail)


def _acted_on(current: RoundView | None) -> RoundView | None:
    """An attempt under way is one thing from its announcement on; its end is shown with all its evidence."""
    if current is None or current.state in _ENDED:
        return current
    return RoundView(
        round=current.round,
        attempt=current.attempt,
        state=_UNDER_WAY,
        announcement=current.announcement,
        outcome=current.outcome,
    )
