"""`moiety site join`: from two invitations to a registration at both operators; repeatable, with the same keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from client_agent.joining.asking import Asking, Send, fetch_card
from client_agent.joining.folder import Joined, Wanted, is_joined, make_folder, open_folder
from host.network.two_operators import require_apart
from protocol.errors import BadSignature, ConfigurationError
from protocol.wire.enrolment.card import OperatorCard
from protocol.wire.enrolment.invitation import Invitation

Pair = tuple[Invitation, Invitation]


def join(pair: Pair, wanted: Wanted, folder: Path, send: Send, clock: Callable[[], float] = time.time) -> Joined:
    """Register at both operators, with keys that are made the first time and kept in ``folder``.

    Raises: ConfigurationError, BadSignature, ConflictingMessage, Unavailable; what was made before stays good for the
    next try, and a registration at one operator alone has no effect
    """
    require_pair(pair)
    pair = (pair[0], pair[1]) if pair[0].side.value < pair[1].side.value else (pair[1], pair[0])
    again = is_joined(folder)
    if not again:  # a registration that was taken is answered after the invitation's end, too
        _require_time(pair, clock())
    cards = (fetch_card(pair[0], send), fetch_card(pair[1], send))
    _require_of(pair, cards)
    joined = open_folder(folder) if again else make_folder(folder, pair[0].site, wanted, cards)
    if again and (joined.cards != cards or (joined.party.name, joined.party.samples) != (pair[0].site, wanted.samples)):
        raise ConfigurationError(
            f"option --out: {folder} was joined as {joined.party.name!r} with {joined.party.samples} training examples "
            f"at {joined.cards[0].url} and {joined.cards[1].url}; these invitations or options say otherwise: name "
            "another folder"
        )
    for invitation, card in zip(pair, cards, strict=True):
        Asking(card, joined.keys, joined.party, send, clock).register(invitation.secret)
    return joined


def require_pair(pair: Pair) -> None:
    """One invitation of each of two operators, for one site of one federation. Raises: ConfigurationError"""
    one, other = pair
    if one.side is other.side or one.operator == other.operator or one.card == other.card:
        raise ConfigurationError(
            f"both invitations are of operator {one.operator!r}, side {one.side.value!r}: a site joins with one of "
            "each of the two operators; ask the other one for its invitation"
        )
    if one.federation != other.federation:
        raise ConfigurationError(
            f"the invitations are for two federations, {one.federation!r} and {other.federation!r}: ask both operators "
            "for invitations to one"
        )
    if (one.site, one.requester) != (other.site, other.requester):
        raise ConfigurationError(
            f"the invitations are for {_whom(one)} and {_whom(other)}: ask for two with the same name and role"
        )
    require_apart((one.url, other.url))


def _whom(one: Invitation) -> str:
    return f"{one.site!r}{' as the requester' if one.requester else ''}"


def _require_time(pair: Pair, now_s: float) -> None:
    for one in pair:
        if now_s >= one.expires_at_s:
            raise BadSignature(
                f"the invitation of {one.operator!r} expired {(now_s - one.expires_at_s) / 60:.0f} minutes ago by this "
                "machine's clock: ask for another, or set the clock if it is wrong"
            )


def _require_of(pair: Pair, cards: tuple[OperatorCard, OperatorCard]) -> None:
    for one, card in zip(pair, cards, strict=True):
        if (one.federation, one.side, one.operator, one.url) != (
            card.federation,
            card.side,
            card.party.name,
            card.url,
        ):
            raise ConfigurationError(
                f"the invitation of {one.operator!r} and its card disagree: it was changed; copy it once more"
            )
