"""Cards and keys for tests of enrolment, made from seeds."""

from __future__ import annotations

from protocol.messages.control import Party, Role
from protocol.roster.enrolment import OperatorCard
from protocol.sharing import Side
from tests.unit.parties import party_keys

FEDERATION = "clinics"


def operator_card(side: Side, federation: str = FEDERATION, url: str | None = None) -> OperatorCard:
    """The card of operator-a or operator-b."""
    url = url or f"https://{side.value}.example:8443"
    party = party_keys(f"operator-{side.value}", Role.OPERATOR).party(url=url)
    return OperatorCard(federation=federation, side=side, party=party)


def site_party(name: str, samples: int = 100, seed: str = "") -> Party:
    return party_keys(name, seed=seed).party(samples=samples)
