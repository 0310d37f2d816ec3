"""The attacks of the catalogue by who makes them, and what must hold of each."""

from __future__ import annotations

from typing import Final

import pytest

from harness.attack.attack import Attack, Party
from harness.attack.catalogue import catalogue, tried

ATTACKS: Final = tuple(catalogue().values())
PARTIES: Final = {
    "sites": (Party.SITE, Party.SERVER_AND_SITE),
    "several_sites": (Party.SITES,),
    "requesters": (Party.REQUESTER,),
    "servers": (Party.SERVER, Party.SERVER_AND_REQUESTER),
    "strangers": (Party.NETWORK, Party.STRANGER),
}


def attacks_by(group: str) -> pytest.MarkDecorator:
    """The attacks of one group of parties, each by its name."""
    made = [attack for attack in ATTACKS if attack.party in PARTIES[group]]
    return pytest.mark.parametrize("attack", made, ids=lambda attack: attack.name)


def require_as_promised(attack: Attack) -> None:
    """It holds as the threat model says, and without its defence it succeeds."""
    with_it = tried(attack)
    assert with_it.error == ""
    assert with_it.held is attack.promised, with_it
    if attack.how.without:
        without = tried(attack, defended=False)
        assert without.error == ""
        assert not without.held, without
