"""A whole secure run in one process: the plain run's loop around :mod:`harness.secure_round`.

Rounds, seeds, batches, policy and rule are the plain run's own; only the way the updates are added up and measured
differs, so that the two histories can be compared round by round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from harness.correlations import SourceName, correlations_from
from harness.datasets.site_data import SiteData
from harness.history import RunHistory
from harness.parties import SiteEntry, make_parties
from harness.rounds_plain import (
    EVERYBODY,
    AfterRound,
    Attendance,
    ClippedUpdate,
    Combine,
    Combined,
    Progress,
    run_rounds,
)
from harness.secure_round import SecureRound, SiteInput
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError
from protocol.policy import SitePolicy
from protocol.wire.messages import Announcement, Study, WeightList


def run_secure(
    study: Study,
    sites: Sequence[SiteData],
    *,
    correlation_source: SourceName | None = None,
    policy: SitePolicy | None = None,
    attendance: Attendance = EVERYBODY,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """A whole run with everything but sealing, signatures and HTTP; the first of ``sites`` is the requester.

    ``correlation_source`` replaces the study's. Every draw comes from the study's seed.

    Raises: ConfigurationError when the study has no seed
    """
    if study.seed is None:
        raise ConfigurationError("a run in one process needs study.seed, so that it can be repeated")
    seed = hashlib.sha256(f"moiety/1 in one process {study.seed} {study.digest()}".encode()).digest()
    combine = secure_combine(study, sites, seed, correlation_source or study.correlation_source)
    return run_rounds(
        study,
        sites,
        combine,
        protection="secure",
        policy=policy,
        attendance=attendance,
        resume=resume,
        after_round=after_round,
    )


def secure_combine(study: Study, sites: Sequence[SiteData], seed: bytes, source: SourceName) -> Combine:
    """How a secure round adds up and measures, for the plain run's loop."""
    requester = sites[0].name
    entries = [SiteEntry(site.name, len(site.train)) for site in sites]
    roster = make_parties("in-one-process", requester, entries, derive(seed, "parties")).roster.message
    draw = correlations_from(source, derive(seed, "correlations"))

    def combine(
        announcement: Announcement,
        weight_list: WeightList,
        own: ClippedUpdate,
        updates: Mapping[str, ClippedUpdate],
    ) -> Combined:
        round_seed = derive(seed, f"round {announcement.round}")
        protected = SecureRound(roster, study.parameters, announcement, round_seed, draw)
        result = protected.run(
            (
                SiteInput(requester, own.values, weight_list.grid),
                *(
                    SiteInput(w.site, updates[w.site].values, w.numerator)
                    for w in weight_list.weights
                    if w.site in updates
                ),
            )
        )
        return Combined(result.average, result.took_part, result.distances, result.failed_check)

    return combine
