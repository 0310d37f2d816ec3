"""Every kill of the crash tests: a party, the failpoint at which it dies, the storage, the mode of the study.

Quick cases run in every test run, all of them in ``make soak``. Each costs five to ten seconds of two processors, so
one stands for its like: a step of one server for the same step of the other, of one rule for any rule, and a step
after it was stored for the one before. The simulator of faults (``harness/faults``) kills servers at all their steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.integration.crash_modes import LOST
from tests.integration.crashes import POSTGRESQL, REQUESTER, ROUNDS, A, B, Case, End, Kill
from tests.integration.tagged import TAGS_FAIL


def parametrised(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """The cases with their names."""

    named = ((f"{case.mode}-{case.storage}-{case.name}", case) for case in cases)
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=name, marks=() if case.quick else pytest.mark.soak) for name, case in named]
    )


def at(party: str, point: str, turn: int = 1, *ends: End, quick: bool = False, large: bool = False) -> Case:
    return Case((Kill(party, point, turn),), frozenset(ends or {End.REPLAYED}), quick, large)


def in_mode(mode: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(case, mode=mode) for case in cases)


SERVER_A = (
    at(A, "before_announcement_stored", 2),
    at(A, "after_announcement_stored", 2),
    at(A, "before_mail_stored", 1),
    at(A, "after_mail_stored", 3),
    at(A, "after_mail_stored", 6),
    at(A, "upload_midway", 2, large=True),
    at(A, "upload_midway", 3, quick=True),
    at(A, "before_upload_written", 3),
    at(A, "after_upload_written", 3),
    at(A, "after_receipt_stored", 3),
    at(A, "after_receipt_sent", 3),
    at(A, "ot_base_midway"),
    at(A, "ot_batch_midway", quick=True),
    at(A, "before_lock_signed", 1),
    at(A, "after_lock_signed", 1),
    at(A, "before_challenge_sent", 1),
    at(A, "before_challenge_stored", 1),
    at(A, "after_challenge_stored", 1, quick=True),
    at(A, "before_queries_stored", 1),
    at(A, "after_queries_stored", 1),
    at(A, "before_correlations_marked", 1),
    at(A, "after_correlations_marked", 1, End.BURNT, quick=True),
    at(A, "after_masked_sent", 1, End.SKIPPED, quick=True),
    at(A, "before_opening_stored", 1, End.SKIPPED),
    at(A, "after_opening_stored", 1),
    at(A, "before_release_set_stored", 1),
    at(A, "after_release_set_stored", 1),
    at(A, "before_mask_stored"),
    at(A, "after_mask_stored"),
    at(A, "masked_sum_midway", large=True),
    at(A, "before_output_stored", 1),
    at(A, "before_output_stored", 2),
    at(A, "after_output_stored", 1),
    at(A, "after_output_stored", 2, quick=True),
)
# B's queries may come after A has marked its correlations and sent its masked vectors, which die with B's session.
SERVER_B = (
    at(B, "before_announcement_stored", 2),
    at(B, "after_announcement_stored", 2),
    at(B, "upload_midway", 2, large=True),
    at(B, "before_upload_written", 3),
    at(B, "after_upload_written", 3),
    at(B, "after_receipt_stored", 3),
    at(B, "after_receipt_sent", 3),
    at(B, "ot_base_midway"),
    at(B, "ot_batch_midway"),
    at(B, "before_lock_signed", 1),
    at(B, "after_lock_signed", 1, quick=True),
    at(B, "before_challenge_stored", 1),
    at(B, "after_challenge_stored", 1),
    at(B, "before_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "after_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "before_opening_stored", 1, End.BURNT),
    at(B, "after_opening_stored", 1, quick=True),
    at(B, "before_release_set_stored", 1),
    at(B, "after_release_set_stored", 1),
    at(B, "before_mask_stored"),
    at(B, "after_mask_stored"),
    at(B, "masked_sum_midway", large=True),
    at(B, "before_output_stored", 1),
    at(B, "before_output_stored", 2, quick=True),
    at(B, "after_output_stored", 1),
    at(B, "after_output_stored", 2),
)


def pair(first: Kill, second: Kill, end: End) -> Case:
    return Case((first, second), frozenset({end}))


_MARKED, _SENT = Kill(A, "after_correlations_marked", 1), Kill(A, "after_masked_sent", 2)
WHILE_A_ROUND_ENDS = (
    pair(_MARKED, Kill(A, "before_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(A, "after_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(B, "before_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(B, "after_outcome_stored"), End.BURNT),
    pair(_SENT, Kill(A, "before_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(A, "after_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(B, "before_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(B, "after_outcome_stored", 1), End.SKIPPED),
)
EVERY_SITE = tuple(
    at(site, point, turn, quick=quick and site == "c2")
    for site in ("c2", REQUESTER)
    for point, turn, quick in (
        ("before_sum_remembered", 1, False),
        ("after_sum_remembered", 1, True),
        ("before_update_encoded", 1, False),
        ("after_update_encoded", 1, False),
        ("before_shares_sealed", 1, False),
        ("after_shares_sealed", 1, False),
        ("before_receipt_journalled", 1, False),
        ("after_receipt_journalled", 1, True),
        ("after_output_opened", 1, False),
        ("before_checkpoint_written", 2, False),
        ("after_checkpoint_written", 2, True),
        ("after_state_written", 2, False),
        ("before_round_recorded", 2, False),
        ("after_round_recorded", 1, False),
    )
)
UPLOADS = (
    at("c2", "upload_midway", 2, large=True),
    at("c3", "upload_midway", 2, large=True),
    at(REQUESTER, "upload_midway", 2, large=True),
)
CONTRIBUTOR = (
    at("c2", "before_decision_journalled", 1),
    at("c2", "after_decision_journalled", 1),
    at("c2", "before_done_journalled", 1),
    at("c2", "after_done_journalled", 1),
    at("c2", "before_checkpoint_written", 1),
    at("c2", "after_state_written", 1),
)
AS_REQUESTER = (
    at(REQUESTER, "after_study_sent", 1),
    at(REQUESTER, "after_study_sent", 2),
    at(REQUESTER, "before_plan_journalled", 1),
    at(REQUESTER, "after_plan_journalled", 1),
    at(REQUESTER, "before_letter_journalled", 1),
    at(REQUESTER, "after_letter_journalled", 2),
    at(REQUESTER, "after_letter_sent", 3),
    at(REQUESTER, "after_letter_sent", 5),
    at(REQUESTER, "before_announced", 1),
    at(REQUESTER, "after_announced", 1, quick=True),
    at(REQUESTER, "after_announced", 2),
    at(REQUESTER, "before_queries_journalled", 1),
    at(REQUESTER, "after_queries_journalled", 1),
    at(REQUESTER, "after_queries_journalled", 2),
    at(REQUESTER, "after_queries_sent", 1, quick=True),
    at(REQUESTER, "before_opened_journalled", 1),
    at(REQUESTER, "after_opened_journalled", 1),
    at(REQUESTER, "after_release_sent", 1),
    at(REQUESTER, "before_settled", 1, quick=True),
    at(REQUESTER, "after_settled", 1),
    at(REQUESTER, "before_end_journalled"),
    at(REQUESTER, "after_end_journalled"),
    at(REQUESTER, "after_end_sent", 1),
    at(REQUESTER, "after_end_sent", 2),
)
PLAIN = (*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER)
COUNTS = in_mode(
    "counts",
    at("c2", "after_update_encoded"),
    at("c2", "after_output_opened", quick=True),
    at(REQUESTER, "before_settled"),
)
FINISH = in_mode(
    "finish",
    at(REQUESTER, "before_finished_written"),
    at(REQUESTER, "after_finished_written", quick=True),
    at(REQUESTER, "before_round_recorded", ROUNDS + 1),
    at(REQUESTER, "after_round_recorded", ROUNDS + 1),
)
# Deaths in the sums that follow are those of any rule.
MEASURING = in_mode(
    "measuring",
    at(A, "after_opening_stored", quick=True),
    at(REQUESTER, "before_opened_journalled"),
    at("c1", "after_shares_sealed"),
    at(A, LOST, quick=True),
    at(A, "after_correlations_marked"),
    at(A, "after_outcome_stored"),
    at(B, "before_opening_stored"),
    at(B, "before_outcome_stored"),
    at(B, "after_outcome_stored"),
    at(REQUESTER, "after_plan_journalled"),
    at(REQUESTER, "after_opened_journalled"),
    at(REQUESTER, "before_settled"),
    at("c1", "after_decision_journalled"),
    at("c1", "before_round_recorded"),
)
SHRINKAGE = in_mode("shrinkage", at(REQUESTER, "after_output_opened", quick=True), at(REQUESTER, "before_settled"))
PRIVACY = in_mode(
    "privacy",
    at("c1", "before_budget_spent", 2),
    at("c1", "after_budget_spent", 2, quick=True),
    at("c1", "after_update_noised", 2),
)
# The requester's and both servers' deaths; a contributor's is that of any round.
RANKING = in_mode(
    "ranking",
    at(A, "after_correlations_marked"),
    at(B, "before_opening_stored", quick=True),
    at(REQUESTER, "before_opened_journalled", quick=True),
    at(A, LOST, quick=True),
    at(A, "after_challenge_stored"),
    at(A, "after_opening_stored"),
    at(A, "after_outcome_stored"),
    at(B, "before_outcome_stored"),
    at(REQUESTER, "after_queries_sent"),
    at(REQUESTER, "after_opened_journalled"),
)
SUMMARY = in_mode(
    "summary",
    at("c2", "after_decision_journalled"),
    at("c2", "after_update_encoded"),
    at("c2", "after_output_opened"),
    at(REQUESTER, "before_settled"),
)
TAGGED = in_mode(
    "tagged",
    at(REQUESTER, "before_tags_judged", quick=True),
    at(REQUESTER, "after_tags_judged", 2, quick=True),
    at(REQUESTER, "before_tag_seed_sent"),
    at(REQUESTER, "before_tag_seed_sent", 2),
    at(REQUESTER, "after_tag_seed_sent"),
    at(REQUESTER, "after_tag_seed_sent", 2),
    at(REQUESTER, "after_tag_seed_sent", 3),
    at(REQUESTER, "before_tags_judged", 2),
    at(REQUESTER, "after_tags_judged"),
    at(REQUESTER, "after_go_sent"),
    at(REQUESTER, "after_go_sent", 2),
    at(REQUESTER, "after_release_sent"),
    at(REQUESTER, "after_output_opened"),
    at("c1", "after_shares_sealed"),
    at("c1", "after_output_opened"),
    at("c1", "after_output_opened", 2),
    at("c1", "before_round_recorded"),
)
WRONG = in_mode(
    "wrong",
    at(REQUESTER, "before_tag_shares_journalled"),
    at(REQUESTER, "after_tag_shares_journalled"),
    at(REQUESTER, "after_tag_shares_journalled", 2),
    at(REQUESTER, "after_tags_judged"),
)
_TAG_STEPS = ("half_committed", "tag_check_stored", "go_stored")
_TAGS_QUICK = (
    (B, "after_half_committed", 1),
    (A, "before_half_committed", 2),
    (A, "after_go_stored", 1),
    (A, "after_tag_shares_stored", 2),
)
# The turn is the number of the round, since odd and even ones differ.
TAGGED_SERVERS = in_mode(
    "tagged-servers",
    *(
        at(server, point, number, quick=(server, point, number) in _TAGS_QUICK)
        for point in (*(f"{when}_{step}" for step in _TAG_STEPS for when in ("before", "after")), *TAGS_FAIL)
        for server in (A, B)
        for number in (1, 2)
    ),
    *(at(A, "after_go_handed_over", number) for number in (1, 2)),
)
ABSENT = in_mode(
    "absent",
    *(
        at(server, f"after_{step}")
        for server in (A, B)
        for step in (
            "announcement_stored",
            "mail_stored",
            "receipt_stored",
            "lock_signed",
            "challenge_stored",
            "queries_stored",
            "opening_stored",
            "release_set_stored",
            "output_stored",
        )
    ),
    at("c2", "after_decision_journalled"),
    at("c2", "after_shares_sealed"),
    at("c2", "after_receipt_journalled"),
    at("c2", "after_output_opened"),
    at(REQUESTER, "after_announced"),
    at(REQUESTER, "after_shares_sealed"),
    at(REQUESTER, "after_queries_sent"),
    at(REQUESTER, "after_release_sent"),
    at(REQUESTER, "before_settled"),
)
IN_POSTGRESQL = tuple(replace(case, storage=POSTGRESQL, quick=False) for case in (*SERVER_A, *SERVER_B))
CASES = (
    *(*PLAIN, *COUNTS, *FINISH, *MEASURING, *SHRINKAGE, *PRIVACY, *RANKING, *SUMMARY),
    *(*TAGGED, *WRONG, *TAGGED_SERVERS, *ABSENT, *IN_POSTGRESQL),
)
