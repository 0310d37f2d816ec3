"""Points at which a test can kill this agent: around each durable step of a round (docs/protocol.md 3, 4, 8, 9)."""

from __future__ import annotations

from enum import StrEnum

from host.failpoints import Failpoints, kill, parse_failpoint
from protocol.errors import ConfigurationError


class Point(StrEnum):
    """Those of every site first, then the contributor's, then the requester's."""

    BEFORE_BUDGET_SPENT = "before_budget_spent"
    AFTER_BUDGET_SPENT = "after_budget_spent"
    AFTER_UPDATE_NOISED = "after_update_noised"
    BEFORE_UPDATE_ENCODED = "before_update_encoded"
    AFTER_UPDATE_ENCODED = "after_update_encoded"
    BEFORE_SHARES_SEALED = "before_shares_sealed"
    AFTER_SHARES_SEALED = "after_shares_sealed"
    UPLOAD_MIDWAY = "upload_midway"
    BEFORE_RECEIPT_JOURNALLED = "before_receipt_journalled"
    AFTER_RECEIPT_JOURNALLED = "after_receipt_journalled"
    AFTER_OUTPUT_OPENED = "after_output_opened"
    BEFORE_CHECKPOINT_WRITTEN = "before_checkpoint_written"
    AFTER_CHECKPOINT_WRITTEN = "after_checkpoint_written"
    AFTER_STATE_WRITTEN = "after_state_written"
    BEFORE_ROUND_RECORDED = "before_round_recorded"
    AFTER_ROUND_RECORDED = "after_round_recorded"

    BEFORE_SUM_REMEMBERED = "before_sum_remembered"
    AFTER_SUM_REMEMBERED = "after_sum_remembered"
    BEFORE_DECISION_JOURNALLED = "before_decision_journalled"
    AFTER_DECISION_JOURNALLED = "after_decision_journalled"
    BEFORE_DONE_JOURNALLED = "before_done_journalled"
    AFTER_DONE_JOURNALLED = "after_done_journalled"

    AFTER_STUDY_SENT = "after_study_sent"
    BEFORE_PLAN_JOURNALLED = "before_plan_journalled"
    AFTER_PLAN_JOURNALLED = "after_plan_journalled"
    BEFORE_LETTER_JOURNALLED = "before_letter_journalled"
    AFTER_LETTER_JOURNALLED = "after_letter_journalled"
    AFTER_LETTER_SENT = "after_letter_sent"
    BEFORE_ANNOUNCED = "before_announced"
    AFTER_ANNOUNCED = "after_announced"
    BEFORE_QUERIES_JOURNALLED = "before_queries_journalled"
    AFTER_QUERIES_JOURNALLED = "after_queries_journalled"
    AFTER_QUERIES_SENT = "after_queries_sent"
    BEFORE_OPENED_JOURNALLED = "before_opened_journalled"
    AFTER_OPENED_JOURNALLED = "after_opened_journalled"
    AFTER_RELEASE_SENT = "after_release_sent"
    BEFORE_TAG_SEED_SENT = "before_tag_seed_sent"
    AFTER_TAG_SEED_SENT = "after_tag_seed_sent"
    BEFORE_TAGS_JUDGED = "before_tags_judged"
    AFTER_TAGS_JUDGED = "after_tags_judged"
    AFTER_GO_SENT = "after_go_sent"
    BEFORE_TAG_SHARES_JOURNALLED = "before_tag_shares_journalled"
    AFTER_TAG_SHARES_JOURNALLED = "after_tag_shares_journalled"
    BEFORE_SETTLED = "before_settled"
    AFTER_SETTLED = "after_settled"
    BEFORE_END_JOURNALLED = "before_end_journalled"
    AFTER_END_JOURNALLED = "after_end_journalled"
    AFTER_END_SENT = "after_end_sent"
    BEFORE_FINISHED_WRITTEN = "before_finished_written"
    AFTER_FINISHED_WRITTEN = "after_finished_written"


def failpoints_of(setting: str | None, seeded: bool) -> Failpoints:
    """Arm the failpoints of a setting. Raises: ConfigurationError, for an unknown point or without a seed"""
    if setting is None:
        return Failpoints()
    if not seeded:
        raise ConfigurationError("key 'failpoint': it kills this agent, and is taken only beside 'seed', for tests")
    point, turn = parse_failpoint(setting, Point)
    return Failpoints(point, turn, kill)
