"""The first roster, made alike by the requester and by each operator of what each has compared itself."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from protocol.configuration import explain
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from protocol.wire.enrolment.card import OperatorCard
from protocol.wire.roster import Party, Roster


def first_roster(cards: tuple[OperatorCard, OperatorCard], requester: str, sites: Sequence[Party]) -> Roster:
    """Make the first roster of two operators' cards and the sites in this order. Raises: ConfigurationError, when they
    make no roster
    """
    by_side = {card.side: card for card in cards}
    if len(by_side) < len(Side) or cards[0].federation != cards[1].federation:
        raise ConfigurationError("a roster has one operator of side a and one of side b, of one federation")
    try:
        return Roster(
            federation=cards[0].federation,
            operator_a=by_side[Side.A].party,
            operator_b=by_side[Side.B].party,
            requester=requester,
            sites=tuple(sites),
        )
    except ValidationError as wrong:
        raise ConfigurationError(f"no roster can be made of these sites: {explain(Roster, wrong)}") from None
