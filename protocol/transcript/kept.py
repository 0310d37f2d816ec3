"""The signed messages of one attempt, as one site has them (docs/protocol.md 15).

Nothing here is secret from the study's parties: no weight, no update, nothing of what was opened. ``altered`` is there
after a sum whose tags were wrong, and shows that sum to whoever reads it.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from protocol.wire.message import Attempt, Digest, PartyName, RoundNumber, Secret32
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    Go,
    OutputCommitment,
    ReleaseSet,
    RoundOutcome,
    RoundView,
    Signed,
    SumRelease,
    TagCheck,
    TagsFailed,
    TagShares,
)

_KEPT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)


class AlteredSum(BaseModel):
    """A served sum with wrong tags: the mask's seed, and the file of the masked vector beside this one.

    With the seed of the tags anybody can compute what each server should have signed.
    """

    model_config = _KEPT
    tag_seed: Secret32
    mask_seed: Secret32
    vector_file: str


class RoundTranscript(BaseModel):
    """Each message with the signatures that it had; one that both servers showed alike is kept once."""

    model_config = _KEPT
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    kept_by: PartyName
    announcements: tuple[Signed[Announcement], ...] = ()
    agreed_sets: tuple[Signed[AgreedSet], ...] = ()
    challenges: tuple[Signed[ChallengeTranscript], ...] = ()
    release_sets: tuple[Signed[ReleaseSet], ...] = ()
    sum_releases: tuple[Signed[SumRelease], ...] = ()
    outcomes: tuple[Signed[RoundOutcome], ...] = ()
    commitments: tuple[Signed[OutputCommitment], ...] = ()
    checks: tuple[Signed[TagCheck], ...] = ()
    goes: tuple[Signed[Go], ...] = ()
    tags_failed: tuple[Signed[TagsFailed], ...] = ()
    tag_shares: tuple[Signed[TagShares], ...] = ()
    altered: AlteredSum | None = Field(default=None, exclude_if=lambda found: found is None)


def shown(
    study_digest: str,
    kept_by: str,
    views: tuple[RoundView, RoundView],
    *,
    failed: Signed[TagsFailed] | None = None,
    shares: tuple[Signed[TagShares], ...] = (),
    go: Signed[Go] | None = None,
    altered: AlteredSum | None = None,
) -> RoundTranscript:
    """Return the record of an ended attempt: both servers' views, and what the requester alone has."""

    def both(name: str) -> Any:  # noqa: ANN401  # of one kind for each name
        found = (getattr(view, name) for view in views)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    goes = tuple(dict.fromkeys((*both("go"), *(() if go is None else (go,)))))
    fails = () if failed is None else (failed,)
    judged = [one.message for one in (*goes, *fails)]
    return RoundTranscript(
        study_digest=study_digest,
        round=views[0].round,
        attempt=views[0].attempt,
        kept_by=kept_by,
        announcements=both("announcement"),
        agreed_sets=both("agreed_set"),
        challenges=both("transcript"),
        release_sets=both("release_set"),
        sum_releases=both("sum_release"),
        outcomes=both("outcome"),
        commitments=tuple(dict.fromkeys((*both("commitment"), *(c for one in judged for c in one.commitments)))),
        checks=tuple(dict.fromkeys(check for one in judged for check in one.checks)),
        goes=goes,
        tags_failed=fails,
        tag_shares=shares,
        altered=altered,
    )
