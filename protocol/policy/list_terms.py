"""The policy's clauses as a rule needs them that makes its lists by them (docs/protocol.md 9)."""

from __future__ import annotations

from protocol.policy.site_policy import SitePolicy
from protocol.rules.risk.terms import ListTerms, SamplingNoise
from protocol.wire.messages import Study


def list_terms(study: Study, policy: SitePolicy, requester_samples: int) -> ListTerms:
    """Return the terms of a list: the study's least number, the strictest announced, and this site's policy for
    everybody.
    """
    parameters, training = study.parameters, study.training
    return ListTerms(
        parameters.least_contributors,
        max(parameters.assumed_colluders, policy.assumed_colluders),
        policy.largest_share_exact,
        SamplingNoise(training.update, training.batch_size, requester_samples),
    )
