"""Every kill of the crash tests: a party, the failpoint at which it dies, the storage, the mode of the study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.integration.crash_modes import LOST
from tests.integration.crashes import POSTGRESQL, REQUESTER, ROUNDS, SQLITE, A, B, Case, End, Kill
from tests.integration.tagged import TAGS_FAIL

# Each of these runs in every test run, the others in ``make soak``. A case costs five to ten seconds of two
# processors, so one stands for its like: a step of one server for the same step of the other, of one rule for any
# rule, the moment after something was stored for the one before. Simulated servers die at every step of a plain round
# (``test_faults_of_servers.py``): of those steps one for each end of a round is here.
QUICK = frozenset(
    [
        "plain-operator-a-upload_midway-3",
        "plain-operator-a-after_correlations_marked-1",
        "plain-operator-a-after_masked_sent-1",
        "plain-operator-b-after_opening_stored-1",
        "plain-c2-after_sum_remembered-1",
        "plain-c2-after_receipt_journalled-1",
        "plain-c2-after_checkpoint_written-2",
        "plain-requester-after_announced-1",
        "plain-requester-after_queries_sent-1",
        "plain-requester-before_settled-1",
        "counts-c2-after_output_opened-1",
        "finish-requester-after_finished_written-1",
        "measuring-operator-a-after_opening_stored-1",
        "measuring-operator-a-after_masked_sent-1",
        "shrinkage-requester-after_output_opened-1",
        "privacy-c1-after_budget_spent-2",
        "ranking-operator-b-before_opening_stored-1",
        "ranking-requester-before_opened_journalled-1",
        "ranking-operator-a-after_masked_sent-1",
        "tagged-requester-before_tags_judged-1",
        "tagged-requester-after_tags_judged-2",
        "tagged-servers-operator-a-before_half_committed-2",
        "tagged-servers-operator-a-after_go_stored-1",
        "tagged-servers-operator-a-after_tag_shares_stored-2",
        "tagged-servers-operator-b-after_half_committed-1",
    ]
)


def is_quick(case: Case) -> bool:
    return case.storage == SQLITE and f"{case.mode}-{case.name}" in QUICK


def parametrised(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """The cases with their names."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=f"{case.mode}-{case.storage}-{case.name}",
                marks=() if is_quick(case) else pytest.mark.soak,
            )
            for case in cases
        ],
    )


def at(party: str, point: str, turn: int = 1, *ends: End, large: bool = False) -> Case:
    return Case((Kill(party, point, turn),), frozenset(ends or {End.REPLAYED}), large)


def around(party: str, *steps: str, turn: int = 1) -> tuple[Case, ...]:
    """Before and after each of these steps."""
    return tuple(at(party, f"{when}_{step}", turn) for step in steps for when in ("before", "after"))


def in_mode(mode: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(case, mode=mode) for case in cases)


def on_a_server(server: str) -> tuple[Case, ...]:
    """Steps that both servers take alike, whatever the side."""
    return (
        *around(server, "announcement_stored", turn=2),
        at(server, "upload_midway", 2, large=True),
        *around(server, "upload_written", turn=3),
        at(server, "after_receipt_stored", 3),
        at(server, "after_receipt_sent", 3),
        at(server, "ot_base_midway"),
        at(server, "ot_batch_midway"),
        *around(server, "lock_signed", "challenge_stored", "release_set_stored", "mask_stored", "output_stored"),
        at(server, "after_opening_stored"),
        at(server, "masked_sum_midway", large=True),
        *around(server, "output_stored", turn=2),
    )


SERVER_A = (
    *on_a_server(A),
    at(A, "before_mail_stored"),
    at(A, "after_mail_stored", 3),
    at(A, "after_mail_stored", 6),
    at(A, "upload_midway", 3),
    at(A, "before_challenge_sent"),
    *around(A, "queries_stored"),
    at(A, "before_correlations_marked"),
    at(A, "after_correlations_marked", 1, End.BURNT),
    at(A, "after_masked_sent", 1, End.SKIPPED),
    at(A, "before_opening_stored", 1, End.SKIPPED),
)
# B's queries may come after A has marked its correlations and sent its masked vectors, which die with B's session.
SERVER_B = (
    *on_a_server(B),
    at(B, "before_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "after_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "before_opening_stored", 1, End.BURNT),
)
_MARKED, _SENT = Kill(A, "after_correlations_marked", 1), Kill(A, "after_masked_sent", 2)
WHILE_A_ROUND_ENDS = tuple(
    Case(
        (first, Kill(server, f"{when}_outcome_stored", 1 if (server, when) == (B, "after") else turn)), frozenset({end})
    )
    for first, turn, end in ((_MARKED, 1, End.BURNT), (_SENT, 2, End.SKIPPED))
    for server in (A, B)
    for when in ("before", "after")
)
EVERY_SITE = tuple(
    case
    for site in ("c2", REQUESTER)
    for case in (
        *around(site, "sum_remembered", "update_encoded", "shares_sealed", "receipt_journalled"),
        at(site, "after_output_opened"),
        *around(site, "checkpoint_written", turn=2),
        at(site, "after_state_written", 2),
        at(site, "before_round_recorded", 2),
        at(site, "after_round_recorded"),
    )
)
UPLOADS = tuple(at(site, "upload_midway", 2, large=True) for site in ("c2", "c3", REQUESTER))
CONTRIBUTOR = (
    *around("c2", "decision_journalled", "done_journalled"),
    at("c2", "before_checkpoint_written"),
    at("c2", "after_state_written"),
)
AS_REQUESTER = (
    *around(REQUESTER, "plan_journalled", "announced", "queries_journalled", "opened_journalled", "settled"),
    *around(REQUESTER, "end_journalled"),
    at(REQUESTER, "before_letter_journalled"),
    *(
        at(REQUESTER, point, turn)
        for point, turns in {
            "after_study_sent": (1, 2),
            "after_letter_journalled": (2,),
            "after_letter_sent": (3, 5),
            "after_announced": (2,),
            "after_queries_journalled": (2,),
            "after_queries_sent": (1,),
            "after_release_sent": (1,),
            "after_end_sent": (1, 2),
        }.items()
        for turn in turns
    ),
)
PLAIN = (*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER)
COUNTS = in_mode(
    "counts", at("c2", "after_update_encoded"), at("c2", "after_output_opened"), at(REQUESTER, "before_settled")
)
FINISH = in_mode(
    "finish",
    *around(REQUESTER, "finished_written"),
    *around(REQUESTER, "round_recorded", turn=ROUNDS + 1),
)
# Deaths in the sums that follow are those of any rule.
MEASURING = in_mode(
    "measuring",
    at(A, "after_opening_stored"),
    at(A, LOST),
    at(A, "after_correlations_marked"),
    at(A, "after_outcome_stored"),
    at(B, "before_opening_stored"),
    *around(B, "outcome_stored"),
    at(REQUESTER, "after_plan_journalled"),
    *around(REQUESTER, "opened_journalled"),
    at(REQUESTER, "before_settled"),
    at("c1", "after_decision_journalled"),
    at("c1", "after_shares_sealed"),
    at("c1", "before_round_recorded"),
)
SHRINKAGE = in_mode("shrinkage", at(REQUESTER, "after_output_opened"), at(REQUESTER, "before_settled"))
PRIVACY = in_mode("privacy", *around("c1", "budget_spent", turn=2), at("c1", "after_update_noised", 2))
# The requester's and both servers' deaths; a contributor's is that of any round.
RANKING = in_mode(
    "ranking",
    *(at(A, point) for point in ("after_correlations_marked", LOST, "after_challenge_stored", "after_opening_stored")),
    at(A, "after_outcome_stored"),
    at(B, "before_opening_stored"),
    at(B, "before_outcome_stored"),
    at(REQUESTER, "after_queries_sent"),
    *around(REQUESTER, "opened_journalled"),
)
SUMMARY = in_mode(
    "summary",
    *(at("c2", f"after_{step}") for step in ("decision_journalled", "update_encoded", "output_opened")),
    at(REQUESTER, "before_settled"),
)
TAGGED = in_mode(
    "tagged",
    *(at(REQUESTER, "before_tag_seed_sent", turn) for turn in (1, 2)),
    *(at(REQUESTER, "after_tag_seed_sent", turn) for turn in (1, 2, 3)),
    *(case for turn in (1, 2) for case in around(REQUESTER, "tags_judged", turn=turn)),
    *(at(REQUESTER, "after_go_sent", turn) for turn in (1, 2)),
    at(REQUESTER, "after_release_sent"),
    at(REQUESTER, "after_output_opened"),
    at("c1", "after_shares_sealed"),
    *(at("c1", "after_output_opened", turn) for turn in (1, 2)),
    at("c1", "before_round_recorded"),
)
WRONG = in_mode(
    "wrong",
    *around(REQUESTER, "tag_shares_journalled"),
    at(REQUESTER, "after_tag_shares_journalled", 2),
    at(REQUESTER, "after_tags_judged"),
)
_TAG_STEPS = ("half_committed", "tag_check_stored", "go_stored")
# The turn is the number of the round, since odd and even ones differ.
TAGGED_SERVERS = in_mode(
    "tagged-servers",
    *(
        at(server, point, number)
        for point in (*(f"{when}_{step}" for step in _TAG_STEPS for when in ("before", "after")), *TAGS_FAIL)
        for server in (A, B)
        for number in (1, 2)
    ),
    *(at(A, "after_go_handed_over", number) for number in (1, 2)),
)
_AT_SERVERS = "announcement mail receipt challenge queries opening release_set output"
ABSENT = in_mode(
    "absent",
    *(at(server, f"after_{kept}_stored") for server in (A, B) for kept in _AT_SERVERS.split()),
    *(at(server, "after_lock_signed") for server in (A, B)),
    *(at("c2", f"after_{step}") for step in ("decision_journalled", "shares_sealed", "receipt_journalled")),
    at("c2", "after_output_opened"),
    *(at(REQUESTER, f"after_{step}") for step in ("announced", "shares_sealed", "queries_sent", "release_sent")),
    at(REQUESTER, "before_settled"),
)
IN_POSTGRESQL = tuple(replace(case, storage=POSTGRESQL) for case in (*SERVER_A, *SERVER_B))
CASES = (
    *(*PLAIN, *COUNTS, *FINISH, *MEASURING, *SHRINKAGE, *PRIVACY, *RANKING, *SUMMARY),
    *(*TAGGED, *WRONG, *TAGGED_SERVERS, *ABSENT, *IN_POSTGRESQL),
)
