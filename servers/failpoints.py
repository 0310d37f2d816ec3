"""Points at which a test can kill this server: around each durable step of a round (docs/protocol.md 4, 7, 9)."""

from __future__ import annotations

import errno
import os
import signal
from enum import StrEnum
from typing import Final, NoReturn

from host.failpoints import Failpoints, kill, parse_failpoint

_STANDS: Final = ":stop"


class Point(StrEnum):
    """``before_X``: X has not happened; ``after_X``: it is on disk, nobody has heard of it."""

    BEFORE_ANNOUNCEMENT_STORED = "before_announcement_stored"
    AFTER_ANNOUNCEMENT_STORED = "after_announcement_stored"
    BEFORE_MAIL_STORED = "before_mail_stored"
    AFTER_MAIL_STORED = "after_mail_stored"
    UPLOAD_MIDWAY = "upload_midway"
    BEFORE_UPLOAD_WRITTEN = "before_upload_written"
    AFTER_UPLOAD_WRITTEN = "after_upload_written"
    AFTER_RECEIPT_STORED = "after_receipt_stored"
    AFTER_RECEIPT_SENT = "after_receipt_sent"
    OT_BASE_MIDWAY = "ot_base_midway"
    OT_BATCH_MIDWAY = "ot_batch_midway"
    BEFORE_LOCK_SIGNED = "before_lock_signed"
    AFTER_LOCK_SIGNED = "after_lock_signed"
    BEFORE_CHALLENGE_SENT = "before_challenge_sent"
    BEFORE_CHALLENGE_STORED = "before_challenge_stored"
    AFTER_CHALLENGE_STORED = "after_challenge_stored"
    BEFORE_QUERIES_STORED = "before_queries_stored"
    AFTER_QUERIES_STORED = "after_queries_stored"
    BEFORE_CORRELATIONS_MARKED = "before_correlations_marked"
    AFTER_CORRELATIONS_MARKED = "after_correlations_marked"
    AFTER_MASKED_SENT = "after_masked_sent"
    BEFORE_OPENING_STORED = "before_opening_stored"
    AFTER_OPENING_STORED = "after_opening_stored"
    BEFORE_RELEASE_SET_STORED = "before_release_set_stored"
    AFTER_RELEASE_SET_STORED = "after_release_set_stored"
    BEFORE_MASK_STORED = "before_mask_stored"
    AFTER_MASK_STORED = "after_mask_stored"
    MASKED_SUM_MIDWAY = "masked_sum_midway"
    BEFORE_HALF_COMMITTED = "before_half_committed"
    AFTER_HALF_COMMITTED = "after_half_committed"
    BEFORE_TAG_CHECK_STORED = "before_tag_check_stored"
    AFTER_TAG_CHECK_STORED = "after_tag_check_stored"
    BEFORE_GO_STORED = "before_go_stored"
    AFTER_GO_STORED = "after_go_stored"
    AFTER_GO_HANDED_OVER = "after_go_handed_over"
    BEFORE_TAG_SHARES_STORED = "before_tag_shares_stored"
    AFTER_TAG_SHARES_STORED = "after_tag_shares_stored"
    BEFORE_SUM_SIGNED = "before_sum_signed"
    AFTER_SUM_SIGNED = "after_sum_signed"
    BEFORE_OUTPUT_STORED = "before_output_stored"
    AFTER_OUTPUT_STORED = "after_output_stored"
    BEFORE_OUTCOME_STORED = "before_outcome_stored"
    AFTER_OUTCOME_STORED = "after_outcome_stored"
    DISK_FULL = "disk_full"


def failpoints_of(setting: str | None) -> Failpoints:
    """Arm the failpoints of a setting; ``NAME:COUNT:stop`` stands still there until it is told to go on.

    Raises: ConfigurationError
    """
    if setting is None:
        return Failpoints()
    named = setting.removesuffix(_STANDS)
    point, turn = parse_failpoint(named, Point)
    if named != setting:
        return Failpoints(point, turn, _stand_still)
    return Failpoints(point, turn, _fill_disk if point is Point.DISK_FULL else kill)


def _stand_still() -> None:
    """As a virtual machine that is moved, or a computer that sleeps: it goes on later and knows nothing of it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _fill_disk() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
