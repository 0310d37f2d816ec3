"""What a round's record has from a certain state on, and code that comes too early for it."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import pytest

from protocol.errors import BadSignature
from protocol.messages.control import (
    AgreedSet,
    ChallengeTranscript,
    CollectedContribution,
    Message,
    OutcomeCause,
    ReleaseSet,
    RoundState,
    Signed,
    SumRelease,
    sign,
    signature_from,
)
from protocol.parameters import Needs
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import Locked, RoundKey
from servers.store.study_records import Challenged, IncompleteRecord, RoundRecord
from tests.unit.parties import REQUESTER, SITES, announcement, parties, study

M = TypeVar("M", bound=Message)
PARTIES = parties()
OPERATOR = PARTIES.roster.message.operator_a.name
KEY = RoundKey(study(PARTIES.roster.message.digest()).digest(), 1, 1)
ANNOUNCED = announcement(KEY.study, opens=Needs.NOTHING)
DIGEST, NONCE, SEED = "ab" * 32, bytes(32), bytes(range(32))


def signed(message: M) -> Signed[M]:
    return sign(message, OPERATOR, PARTIES.keys[OPERATOR].signing)


EARLY = RoundRecord(KEY, RoundState.ANNOUNCED, signed(ANNOUNCED), 2e9)
AGREED = signed(
    AgreedSet(
        study_digest=KEY.study,
        round=1,
        attempt=1,
        announcement_digest=ANNOUNCED.digest(),
        contributions=tuple(
            CollectedContribution(
                site=site, announcement_digest=ANNOUNCED.digest(), commitment_a=DIGEST, commitment_b=DIGEST
            )
            for site in SITES
        ),
    )
)
TRANSCRIPT = signed(
    ChallengeTranscript(
        agreed_set_digest=DIGEST, commitment_a=DIGEST, nonce_b=DIGEST, nonce_a=DIGEST, challenge=SEED.hex()
    )
)
RELEASE = signed(ReleaseSet(study_digest=KEY.study, round=1, attempt=1, agreed_set_digest=DIGEST, sites=SITES))
SUM = signed(SumRelease(study_digest=KEY.study, round=1, attempt=1, release_digest=DIGEST, sum_digest=DIGEST))
SKIP = signed(outcome_of(EARLY.key, RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME))
LATE = replace(
    EARLY,
    state=RoundState.MEASURED,
    agreed_set=AGREED,
    own_nonce=NONCE,
    transcript=TRANSCRIPT,
    release_set=RELEASE,
    mask_seed=SEED,
    sum_release=SUM,
    outcome=SKIP,
)


def test_a_record_that_came_so_far_has_it() -> None:
    assert LATE.challenged == Challenged(AGREED, TRANSCRIPT)
    assert (LATE.challenged.sites, LATE.challenged.challenge) == (SITES, SEED)
    assert (LATE.agreed, LATE.nonce, LATE.chosen, LATE.mask) == (AGREED, NONCE, RELEASE, SEED)
    assert (LATE.signed_sum, LATE.signed_outcome) == (SUM, SKIP)


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
def test_a_record_that_did_not_says_what_is_missing(asked: str, lacks: str, what: str) -> None:
    nothing: dict[str, Any] = {lacks: None}
    record = replace(LATE, **nothing)
    with pytest.raises(IncompleteRecord, match=rf"round 1 attempt 1 is measured here and has no {what}, which"):
        attrgetter(asked)(record)


def test_secrets_of_a_locked_round_are_not_shown() -> None:
    assert repr(NONCE) not in repr(Locked(LATE.begun, LATE.agreed, LATE.nonce))


def test_a_signature_that_is_missing_is_named() -> None:
    assert signature_from(AGREED, OPERATOR) == AGREED.signatures[0]
    with pytest.raises(BadSignature, match=f"the signature of '{REQUESTER}' is missing"):
        signature_from(AGREED, REQUESTER)
