"""Messages of a round with everybody's default values: a test says only what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.messages.control import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    ListedWeight,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    SumRelease,
    WeightList,
)
from protocol.parameters import Needs


def weight_list(study_digest: str, weights: Mapping[str, int], **changes: Any) -> WeightList:
    """The first round's list of these numerators, over a grid of 32."""
    fields: dict[str, Any] = {
        "study_digest": study_digest,
        "round": 1,
        "grid": 32,
        "weights": tuple(ListedWeight(site=site, numerator=numerator) for site, numerator in weights.items()),
        "salt": "cd" * 32,
    }
    return WeightList(**(fields | changes))


def announcement(**changes: Any) -> Announcement:
    """The first round of a study, of which three contributors are due and whose distances are opened."""
    fields: dict[str, Any] = {
        "round": 1,
        "least_contributors": 3,
        "opens": Needs.DISTANCES,
        "model_version": 0,
        "model_digest": "1" * 64,
        "weight_list_digest": "2" * 64,
        "closes_at_s": 2_000_000_000,
    }
    return Announcement(**(fields | changes))


def announcement_of(weights: WeightList, **changes: Any) -> Announcement:
    """The round of this list."""
    named: dict[str, Any] = {
        "study_digest": weights.study_digest,
        "round": weights.round,
        "listed": tuple(weight.site for weight in weights.weights),
        "weight_list_digest": weights.digest(),
    }
    return announcement(**(named | changes))


def collected(site: str, on: Announcement, **changes: Any) -> CollectedContribution:
    """One site's contribution to the announced round, as both servers hold it."""
    fields = {"announcement_digest": on.digest(), "commitment_a": "a" * 64, "commitment_b": "b" * 64}
    return CollectedContribution(site=site, **(fields | changes))


def agreed_set(on: Announcement, sites: tuple[str, ...], **changes: Any) -> AgreedSet:
    """The first attempt's contributions of these sites to the announced round."""
    fields: dict[str, Any] = {
        "study_digest": on.study_digest,
        "round": on.round,
        "attempt": 1,
        "announcement_digest": on.digest(),
        "contributions": tuple(collected(site, on) for site in sites),
    }
    return AgreedSet(**(fields | changes))


def release_set(agreed: AgreedSet, sites: tuple[str, ...], **changes: Any) -> ReleaseSet:
    """The sum of these sites of an agreed set."""
    of: dict[str, Any] = {"study_digest": agreed.study_digest, "round": agreed.round, "attempt": agreed.attempt}
    return ReleaseSet(**(of | {"agreed_set_digest": agreed.digest(), "sites": sites} | changes))


def sum_release(release: ReleaseSet, digest: str) -> SumRelease:
    """The sum of ciphertexts of a release set, by its digest."""
    of: dict[str, Any] = {"study_digest": release.study_digest, "round": release.round, "attempt": release.attempt}
    return SumRelease(**of, release_digest=release.digest(), sum_digest=digest)


def outcome(study_digest: str, /, **changes: Any) -> RoundOutcome:
    """The end of the first attempt at a study's first round: a skip, unless ``changes`` say otherwise."""
    fields: dict[str, Any] = {
        "study_digest": study_digest,
        "round": 1,
        "attempt": 1,
        "outcome": RoundState.SKIPPED,
        "cause": OutcomeCause.NOT_AGREED_IN_TIME,
    }
    return RoundOutcome(**(fields | changes))
