"""When side A need not wait for a round's time: everybody who can still come has answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.messages.control import OutcomeCause, RoundState, sign
from protocol.rounds.agreement import Shortfall
from protocol.rounds.side_a import Act, End, Facts, Step, Wait, due, outcome_of
from protocol.rounds.states import RoundKey
from servers.rounds.standing import at_a
from servers.store.study_records import RoundRecord
from tests.unit.parties import REQUESTER, SITES, announcement, parties

ANNOUNCED = announcement("d" * 64, number=2, least_contributors=2)
RECORD = RoundRecord(
    RoundKey(ANNOUNCED.study_digest, 2, 1),
    RoundState.COLLECTING,
    sign(ANNOUNCED, REQUESTER, parties().keys[REQUESTER].signing),
    2e9,
)
ONE, TWO, THREE = SITES[1:]


class Held:
    """What side A has of the round."""

    def __init__(self, contributed: tuple[str, ...], declined: tuple[str, ...]) -> None:
        self._contributed = contributed
        self._declined = declined

    def mail_of(self, study: str, topics: list[str]) -> list[Any]:
        assert (study, topics) == (ANNOUNCED.study_digest, ["decline-2"])
        return [SimpleNamespace(sender=site) for site in self._declined]

    def contributions_held(self, key: RoundKey) -> int:
        return len(self.contributors_of(key))

    def contributors_of(self, key: RoundKey) -> tuple[str, ...]:
        assert key == RECORD.key
        return self._contributed


def found(contributed: tuple[str, ...], declined: tuple[str, ...], removed: tuple[str, ...] = ()) -> Step:
    roster = parties().roster.message
    now = roster.model_copy(update={"sites": tuple(site for site in roster.sites if site.name not in removed)})
    state = at_a(cast(Any, SimpleNamespace(store=Held(contributed, declined), roster=now)), RECORD)
    return due(state, Facts(roster, now_s=1e9, grace_s=60.0, attempts=3, study_ended=False))


@pytest.mark.parametrize(
    ("contributed", "declined"),
    [
        ((), (ONE, TWO, THREE)),
        ((REQUESTER,), (ONE, TWO, THREE)),
        ((REQUESTER, ONE), (TWO, THREE)),
    ],
)
def test_the_round_ends_once_everybody_has_answered(contributed: tuple[str, ...], declined: tuple[str, ...]) -> None:
    willing = len(set(contributed) - {REQUESTER})
    why = Shortfall(OutcomeCause.TOO_FEW_CONTRIBUTORS, willing, 2)
    assert found(contributed, declined) == End(outcome_of(RECORD.key, RoundState.SKIPPED, why))


@pytest.mark.parametrize(
    ("contributed", "declined"),
    [
        ((), ()),
        ((), (ONE, TWO)),  # too few are left already, but the third one's reason may still come
        ((REQUESTER, ONE), (TWO,)),  # as many as are listed, and one of them silent
        ((ONE,), (ONE, TWO)),  # who declines after all is one site, not two
        ((ONE, TWO), (THREE,)),  # enough, but the requester's own share may still come
    ],
)
def test_otherwise_it_waits(contributed: tuple[str, ...], declined: tuple[str, ...]) -> None:
    assert found(contributed, declined) == Wait(2e9)


@pytest.mark.parametrize(
    ("contributed", "declined", "removed"),
    [
        ((REQUESTER, ONE, TWO), (THREE,), ()),
        ((REQUESTER, ONE, TWO), (TWO, THREE), ()),
        ((REQUESTER, ONE, TWO), (), (THREE,)),
        ((REQUESTER, ONE, TWO, THREE), (), (THREE,)),  # what it sent before stays
    ],
)
def test_it_closes_early_once_all_who_can_still_come_have_contributed(
    contributed: tuple[str, ...], declined: tuple[str, ...], removed: tuple[str, ...]
) -> None:
    assert found(contributed, declined, removed) is Act.COMPARE
