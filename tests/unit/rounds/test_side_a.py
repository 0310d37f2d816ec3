"""Side A's decisions: what holds in every round, however it goes (docs/protocol.md 4, 7, 8, 11).

What it decides where, in these rounds and more, is recorded in tests/frozen/recorded/decisions.json.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from protocol.errors import BadSignature, ShareAltered
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    OutcomeCause,
    RoundState,
    Signed,
    require_signatures,
    sign,
)
from protocol.messages.peer import LockReply
from protocol.rounds import side_a
from protocol.rounds.agreement import agree, check_transcript, nonce_commitment
from protocol.rounds.side_a import Act, AwaitGo, End, Halt, Lock, TryLater, Wait, lost_share
from protocol.rounds.states import (
    AwaitingQueries,
    Chosen,
    Collecting,
    Committed,
    Ending,
    Gone,
    Locked,
    Masked,
    Over,
    RoundKey,
    SumSigned,
    TagsWrong,
)
from protocol.sharing import Side
from servers.store.records import RoundRecord
from tests.kit.present import present
from tests.unit.parties import REQUESTER, SITES, parties
from tests.unit.rounds.traces_a import ANNOUNCED, CLOSES_S, GRACE_S, HELD, ROSTER, STUDY, TAGGED, Decided, Trace

SEEDS = range(10_000, 10_500)
SHARES_ALONE = {Act.COMPARE, Act.TOSS, Act.MULTIPLY, Act.SEND_AGAIN, Act.HAND_OVER, Act.HAND_OVER_GO}
CIPHERTEXTS_ALONE = {Act.READ_OWN, Act.SUM_UP}
IN_TIME = {OutcomeCause.QUERIES_MISSING, OutcomeCause.NOT_AGREED_IN_TIME, OutcomeCause.RELEASE_SET_MISSING}


@pytest.fixture(scope="module")
def rounds() -> list[list[Decided]]:
    return [Trace(seed).run() for seed in SEEDS] + [Trace(seed, TAGGED).run() for seed in SEEDS]


@pytest.fixture(scope="module")
def decided(rounds: list[list[Decided]]) -> list[Decided]:
    return [one for trace in rounds for one in trace]


def test_every_step_and_every_cause_comes_up(decided: list[Decided]) -> None:
    steps_seen = {one.step for one in decided if isinstance(one.step, Act)}
    assert steps_seen == set(Act)
    seen = {one.step.outcome.cause for one in decided if isinstance(one.step, End)}
    assert seen == set(OutcomeCause) - {OutcomeCause.SHARE_ALTERED_AT_A, OutcomeCause.SHARE_ALTERED_AT_B}


@pytest.mark.parametrize("at", Side)
def test_a_lost_share_ends_every_round_that_can_still_be_skipped_and_names_server_and_site(
    decided: list[Decided], at: Side
) -> None:
    error = ShareAltered("the stored share of 'hospital-1' is not what was received")
    assert [error.is_of(site) for site in ("hospital-1", "hospital", "hospital-2")] == [True, False, False]
    ends = Counter[str]()
    for one in decided:
        step = lost_share(one.state, error, at, "hospital-1")
        signed = isinstance(one.state, Ending | Over | SumSigned | Gone)
        assert isinstance(step, Halt if signed else End)
        if isinstance(step, End):
            assert (step.outcome.outcome, step.outcome.site) == (RoundState.SKIPPED, "hospital-1")
            assert f"server {at.value.upper()}" in step.outcome.reason
            ends[type(one.state).__name__] += 1
    assert {"Measuring", "AwaitingQueries", "Chosen", "Masked"} <= set(ends)


def test_an_attempt_is_locked_once_all_expected_are_there_or_time_is_over(decided: list[Decided]) -> None:
    for one in decided:
        if isinstance(one.step, Lock):
            announcement = one.record.announcement.message
            still_to_come = {*announcement.listed, REQUESTER} - one.declined - {c.site for c in one.held}
            assert not still_to_come or one.facts.now_s >= one.record.closes_at_s
            assert isinstance(one.state, Collecting)
            assert set(one.step.agreed.sites) <= {c.site for c in one.held}
            assert {c.commitment_a for c in one.step.agreed.contributions} <= {c.commitment_a for c in one.held}
            assert REQUESTER in one.step.agreed.sites
            assert len(one.step.agreed.sites) - 1 >= announcement.least_contributors


def test_nothing_ends_for_lateness_before_it_is_late(decided: list[Decided]) -> None:
    for one in decided:
        if isinstance(one.step, End) and one.step.outcome.cause in IN_TIME:
            assert one.facts.now_s >= one.record.closes_at_s + GRACE_S


def test_shares_and_ciphertexts_go_their_own_ways(decided: list[Decided]) -> None:
    for one in decided:
        encrypted = one.record.announcement.message.protection.plan.keyed
        assert one.step not in (SHARES_ALONE if encrypted else CIPHERTEXTS_ALONE)
        if encrypted and isinstance(one.step, End):
            assert one.step.outcome.outcome is RoundState.SKIPPED


def test_only_what_spent_a_correlation_or_was_refused_is_burnt_and_only_while_attempts_are_left(
    decided: list[Decided],
) -> None:
    for one in decided:
        if isinstance(one.step, End) and one.step.outcome.outcome is RoundState.BURNT:
            assert one.record.state is RoundState.LOCKED
            assert one.record.key.attempt < one.facts.attempts
            assert one.step.outcome.cause in (OutcomeCause.CORRELATIONS_LOST, OutcomeCause.PRODUCTS_REFUSED)
            assert (one.step.outcome.code is None) == (one.step.outcome.cause is OutcomeCause.CORRELATIONS_LOST)


def test_an_end_names_its_attempt_and_is_what_its_purpose_ends_as(decided: list[Decided]) -> None:
    for one in decided:
        if isinstance(one.step, End):
            outcome, key = one.step.outcome, one.record.key
            assert (outcome.study_digest, outcome.round, outcome.attempt) == (key.study, key.round, key.attempt)
            ends_as = one.record.announcement.message.purpose.plan.ends_as
            assert outcome.outcome in (ends_as, RoundState.SKIPPED, RoundState.BURNT)


def test_once_a_set_was_chosen_a_round_is_released_or_halts(decided: list[Decided]) -> None:
    for one in decided:
        if isinstance(one.state, Chosen | Masked | SumSigned):
            assert not isinstance(one.step, End)
        if one.step is Act.ADOPT:
            assert isinstance(one.state, Chosen), "its mask seed is drawn: its sum may have left"


def test_with_tags_a_round_is_committed_before_it_is_released_and_go_ends_it_in_one_way(
    rounds: list[list[Decided]],
) -> None:
    gone = 0
    for trace in rounds:
        for one, after in pairwise(trace):
            if one.record.announcement.message.tagged and after.record.state is RoundState.RELEASED:
                assert one.record.state in (RoundState.COMMITTED, RoundState.RELEASED)
                assert one.record.go is not None
            if isinstance(one.state, Gone):
                gone += 1
                assert not isinstance(one.step, End)
                assert one.step is Act.HAND_OVER_GO or isinstance(one.step, Halt)
            if isinstance(one.state, TagsWrong):
                assert isinstance(one.step, End)
                assert one.step.outcome.cause is OutcomeCause.TAGS_FAILED
    assert gone > 25


def test_go_is_waited_for_from_when_this_side_has_committed(decided: list[Decided]) -> None:
    waited = 0
    for one in decided:
        if not isinstance(one.state, Committed):
            continue
        until_s = max(one.record.closes_at_s, one.record.committed_since_s) + GRACE_S
        if isinstance(one.step, End):
            assert one.facts.now_s >= until_s
            assert one.asked, "B may have it"
        if isinstance(one.step, AwaitGo):
            waited += 1
            assert 0 <= one.step.for_s <= side_a.RELEASE_SET_POLL_S
    assert waited > 25


def test_a_signed_end_changes_only_for_an_opening_that_b_has(decided: list[Decided]) -> None:
    for one in decided:
        if isinstance(one.state, Ending) and isinstance(one.step, End):
            assert one.asked
            assert one.step.outcome.cause is OutcomeCause.OPENING_AT_ONE_SERVER


def test_what_is_over_rests_for_ever(rounds: list[list[Decided]]) -> None:
    for trace in rounds:
        for place, one in enumerate(trace):
            assert (one.step is Act.REST) == isinstance(one.state, Over)
            assert one.step is not Act.REST or place == len(trace) - 1


def test_b_is_asked_before_its_answer_is_taken(decided: list[Decided]) -> None:
    answered = {Act.TAKE, Act.TAKE_ALONE, Act.ADOPT, Act.SEND_AGAIN, Act.LOOK_AGAIN}
    asks = {Act.COMPARE, Act.READ_OWN, Act.TOSS, Act.MULTIPLY, Act.COUNTERSIGN, Act.HAND_OVER, Act.SUM_UP}
    asks |= {Act.HAND_OVER_GO}
    for one in decided:
        assert one.asked or not (one.step in answered or isinstance(one.step, Lock))
        assert not one.asked or one.step not in asks


def test_a_study_that_ended_waits_for_nobody(decided: list[Decided]) -> None:
    for one in decided:
        if one.facts.study_ended and one.record.state is RoundState.LOCKED and one.record.outcome is None:
            assert not isinstance(present(one.step), Wait)
        if isinstance(one.state, AwaitingQueries) and not one.asked:
            assert isinstance(side_a.due(one.state, replace(one.facts, study_ended=True)), TryLater)


def test_a_decision_follows_from_its_arguments_alone(decided: list[Decided]) -> None:
    for one in decided[::7]:
        assert side_a.due(one.state, one.facts) == one.step


def test_the_lock_shows_one_signature_and_the_toss_takes_the_peers() -> None:
    of, nonces = ANNOUNCED[0], (bytes(range(32)), bytes(range(1, 33)))
    held = tuple(HELD[of, site, False] for site in SITES)
    keys = {name: parties().keys[name].signing for name in (ROSTER.operator_a.name, ROSTER.operator_b.name)}
    agreed = agree(of, 1, ROSTER, held, held)
    by_a, by_b = (sign(agreed, name, keys[name]) for name in keys)
    attempt = RoundRecord(RoundKey(STUDY, 1, 1), RoundState.LOCKED, Signed[Announcement](message=of), CLOSES_S).begun
    locked = Locked(attempt, Signed[AgreedSet](message=agreed, signatures=by_a.signatures + by_b.signatures), nonces[0])
    request = side_a.lock_request(locked)
    assert (request.agreed_set, request.commitment_a) == (by_a, nonce_commitment(1, agreed.digest(), nonces[0]))
    reply = LockReply(signature=by_b.signatures[0], nonce_b=nonces[1].hex())
    toss = side_a.tossed(replace(locked, agreed=by_a), reply, ROSTER.operator_b)
    assert require_signatures(toss.agreed, ROSTER, tuple(keys)) == agreed
    assert check_transcript(1, agreed, toss.transcript) == bytes.fromhex(toss.transcript.challenge)
    with pytest.raises(BadSignature):
        side_a.tossed(locked, LockReply(signature=by_a.signatures[0], nonce_b=reply.nonce_b), ROSTER.operator_b)
