"""A whole protected run in one process: the plain run's loop, its sums made as the study's protection says.

Rounds, seeds, batches, policy and rule are the plain run's own; only the way the updates are added up and measured
differs, so that the two histories can be compared round by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.datasets.site_data import SiteData
from harness.engine.ckks import ckks_sum
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.rounds.correlations import SourceName
from harness.engine.run_state import USUAL, AfterRound, Conditions, Progress
from harness.engine.secure import TamperInRound, secure_sum
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Study


def run_protected(
    study: Study,
    sites: Sequence[SiteData],
    *,
    correlation_source: SourceName | None = None,
    policy: SitePolicy | None = None,
    conditions: Conditions = USUAL,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
    tamper: TamperInRound | None = None,
) -> RunHistory:
    """A whole run with everything but sealing, signatures and HTTP; the first of ``sites`` is the requester.

    ``policy`` comes before that of ``conditions``; ``correlation_source`` replaces the study's. Every draw but SEAL's
    comes from the study's seed; ``tamper`` lets sites misbehave with what they share.

    Raises: as :func:`harness.engine.loop.run_plain`; AggregateOutOfBounds; ConfigurationError where TenSEAL is needed
            and missing, or sums fewer sites
    """
    shares, plan = secure_sum(study, sites, correlation_source, tamper), study.protection.plan
    return run_rounds(
        study,
        sites,
        ckks_sum(study, len(sites), shares) if plan.keyed else shares,
        replace(conditions, policy=policy or conditions.policy),
        protection=plan.name,
        resume=resume,
        after_round=after_round,
    )
