"""Runs in one process whose sites ask for no isolation, for tests of everything else: small models over few sites
with full batches are what isolation refuses.
"""

from __future__ import annotations

from typing import Any

from harness import rounds_ckks, rounds_plain, rounds_secure
from harness.history import RunHistory
from protocol.policy import SitePolicy


def run_plain(*arguments: Any, policy: SitePolicy | None = None, **options: Any) -> RunHistory:
    return rounds_plain.run_plain(*arguments, policy=_unlimited(policy), **options)


def run_secure(*arguments: Any, policy: SitePolicy | None = None, **options: Any) -> RunHistory:
    return rounds_secure.run_secure(*arguments, policy=_unlimited(policy), **options)


def run_ckks(*arguments: Any, policy: SitePolicy | None = None, **options: Any) -> RunHistory:
    return rounds_ckks.run_ckks(*arguments, policy=_unlimited(policy), **options)


def _unlimited(policy: SitePolicy | None) -> SitePolicy:
    return (policy or SitePolicy()).model_copy(update={"least_isolation": 0.0})
