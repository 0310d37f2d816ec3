"""Fields of a round's record from a certain state on, and code that comes too early for them."""

from __future__ import annotations

from dataclasses import replace
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
SET: Any = "an agreed set"


def test_a_record_has_what_its_state_says_or_names_what_is_missing() -> None:
    assert replace(EARLY, own_nonce=NONCE).nonce == NONCE
    with pytest.raises(
        IncompleteRecord, match="round 1 attempt 1 is measured here and has no nonce of this side, which"
    ):
        _ = EARLY.nonce
    with pytest.raises(IncompleteRecord, match="has no challenge, which it must have by now"):
        _ = replace(EARLY, agreed_set=SET).challenged


def test_secrets_of_a_locked_round_are_not_shown() -> None:
    assert repr(NONCE) not in repr(Locked(EARLY.begun, SET, NONCE))


def test_a_signature_that_is_missing_is_named() -> None:
    assert signature_from(ANNOUNCED, OPERATOR) == ANNOUNCED.signatures[0]
    with pytest.raises(BadSignature, match=f"the signature of '{REQUESTER}' is missing"):
        signature_from(ANNOUNCED, REQUESTER)
