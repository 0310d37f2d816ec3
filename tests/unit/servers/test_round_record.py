"""Fields of a round's record from a certain state on, and code that comes too early for them."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from protocol.errors import BadSignature
from protocol.messages.control import RoundState, sign, signature_from
from protocol.parameters import Needs
from protocol.rounds.states import Locked, RoundKey
from servers.store.records import IncompleteRecord, RoundRecord
from tests.unit.parties import REQUESTER, announcement, parties

NONCE = bytes(range(32))
PARTIES = parties()
OPERATOR = PARTIES.roster.message.operator_a.name
ANNOUNCED = sign(announcement("ab" * 32, opens=Needs.NOTHING), OPERATOR, PARTIES.keys[OPERATOR].signing)
EARLY = RoundRecord(RoundKey("ab" * 32, 1, 1), RoundState.MEASURED, ANNOUNCED, 2e9)
LATER: dict[str, Any] = {
    "agreed_set": "an agreed set",
    "own_nonce": NONCE,
    "transcript": "a transcript",
    "release_set": "a release set",
    "mask_seed": NONCE,
    "sum_release": "a sum",
    "outcome": "an outcome",
}


@pytest.mark.parametrize(
    ("asked", "lacks", "what"),
    [
        ("agreed", "agreed_set", "agreed set"),
        ("nonce", "own_nonce", "nonce of this side"),
        ("challenged", "agreed_set", "agreed set"),
        ("challenged", "transcript", "challenge"),
        ("chosen", "release_set", "release set"),
        ("mask", "mask_seed", "mask"),
        ("signed_sum", "sum_release", "signed sum"),
        ("signed_outcome", "outcome", "signed outcome"),
    ],
)
def test_a_record_has_what_its_state_says_or_names_what_is_missing(asked: str, lacks: str, what: str) -> None:
    found = attrgetter(asked)(replace(EARLY, **LATER))
    assert found == LATER[lacks] or LATER[lacks] in vars(found).values()
    with pytest.raises(IncompleteRecord, match=rf"round 1 attempt 1 is measured here and has no {what}, which"):
        attrgetter(asked)(replace(EARLY, **LATER | {lacks: None}))


def test_secrets_of_a_locked_round_are_not_shown() -> None:
    assert repr(NONCE) not in repr(Locked(EARLY.begun, LATER["agreed_set"], NONCE))


def test_a_signature_that_is_missing_is_named() -> None:
    assert signature_from(ANNOUNCED, OPERATOR) == ANNOUNCED.signatures[0]
    with pytest.raises(BadSignature, match=f"the signature of '{REQUESTER}' is missing"):
        signature_from(ANNOUNCED, REQUESTER)
