"""Agreed sets, the coin toss, and the model digest (docs/protocol.md 3, 4)."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolViolation, TranscriptMismatch
from protocol.messages.control import AgreedSet, CollectedContribution, OutcomeCause
from protocol.rounds import agreement as lock
from tests.unit.parties import REQUESTER, SITES, announcement, parties

ROSTER = parties().roster.message
OPENED = announcement("a" * 64)
NONCE_A, NONCE_B = b"\x01" * 32, b"\x02" * 32


def held(site: str, **changes: str) -> CollectedContribution:
    fields = {"announcement_digest": OPENED.digest(), "commitment_a": "3" * 64, "commitment_b": "4" * 64}
    return CollectedContribution(site=site, **(fields | changes))


ALL = [held(site) for site in SITES]


def agreed(mine: list[CollectedContribution], theirs: list[CollectedContribution]) -> AgreedSet:
    return lock.agree(OPENED, 1, ROSTER, mine, theirs)


def test_both_servers_compute_the_same_set_in_roster_order() -> None:
    assert agreed(ALL, ALL[::-1]) == agreed(ALL[::-1], ALL)
    assert agreed(ALL[::-1], ALL).sites == SITES


@pytest.mark.parametrize(
    "theirs",
    [
        ALL[:3],
        [*ALL[:3], held(SITES[3], commitment_b="5" * 64)],
        [*ALL[:3], held(SITES[3], announcement_digest="6" * 64)],
    ],
    ids=["only one share", "another commitment", "another announcement"],
)
def test_a_site_counts_only_with_both_matching_shares(theirs: list[CollectedContribution]) -> None:
    assert agreed(ALL, theirs).sites == SITES[:3]
    assert agreed(theirs, ALL).sites == SITES[:3]


def test_a_contribution_bound_to_another_announcement_does_not_count_even_if_both_hold_it() -> None:
    other = [*ALL[:3], held(SITES[3], announcement_digest="6" * 64)]
    assert agreed(other, other).sites == SITES[:3]


def test_a_site_that_is_not_listed_does_not_count() -> None:
    narrow = announcement("a" * 64, listed=SITES[1:3], least_contributors=2)
    both = [held(site, announcement_digest=narrow.digest()) for site in SITES]
    assert lock.agree(narrow, 1, ROSTER, both, both).sites == SITES[:3]


def test_shortfall_names_what_is_missing() -> None:
    assert lock.shortfall(agreed(ALL, ALL), OPENED, REQUESTER) is None
    assert lock.shortfall(agreed(ALL[1:], ALL), OPENED, REQUESTER) == lock.Shortfall(OutcomeCause.REQUESTER_MISSING)
    few = lock.shortfall(agreed(ALL[:3], ALL), OPENED, REQUESTER)
    assert few == lock.Shortfall(OutcomeCause.TOO_FEW_CONTRIBUTORS, 2, 3)
    assert few.reason == "2 contributors, the announcement asks for at least 3"


def test_the_challenge_depends_on_every_part_of_the_transcript() -> None:
    digest = agreed(ALL, ALL).digest()
    base = lock.transcript(1, digest, NONCE_A, NONCE_B)
    others = [
        lock.transcript(1, digest, NONCE_B, NONCE_B),
        lock.transcript(1, digest, NONCE_A, NONCE_A),
        lock.transcript(1, "7" * 64, NONCE_A, NONCE_B),
    ]
    assert base.challenge not in {other.challenge for other in others}
    assert lock.nonce_commitment(2, digest, NONCE_A) != base.commitment_a


def test_the_transcript_is_recomputed_by_whoever_receives_it() -> None:
    chosen = agreed(ALL, ALL)
    good = lock.transcript(1, chosen.digest(), NONCE_A, NONCE_B)
    assert lock.check_transcript(1, chosen, good) == bytes.fromhex(good.challenge)
    for field in ("challenge", "commitment_a", "nonce_a", "nonce_b", "agreed_set_digest"):
        forged = good.model_copy(update={field: "8" * 64})
        with pytest.raises(TranscriptMismatch):
            lock.check_transcript(1, chosen, forged)
    with pytest.raises(ProtocolViolation, match="round 1, expected 2"):
        lock.check_transcript(2, chosen, good)


def test_the_model_digest_depends_on_key_study_round_and_model() -> None:
    base = lock.model_digest(b"k" * 32, "a" * 64, 1, b"model")
    assert base == lock.model_digest(b"k" * 32, "a" * 64, 1, b"model")
    changed = [
        lock.model_digest(b"l" * 32, "a" * 64, 1, b"model"),
        lock.model_digest(b"k" * 32, "b" * 64, 1, b"model"),
        lock.model_digest(b"k" * 32, "a" * 64, 2, b"model"),
        lock.model_digest(b"k" * 32, "a" * 64, 1, b"models"),
    ]
    assert base not in changed
