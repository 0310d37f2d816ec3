"""A summary under the protocol, all parties in one process (docs/protocol.md 17).

Real: protection, shares, agreed set, coin toss, range check with products from OT, masked sum and its checks. Left out,
since nothing leaves the process: sealing, signatures, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from client_agent.requester.measuring.judging import judge_sum
from harness.engine.announcing import NO_SECRET
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.rounds.correlations import correlations_from
from harness.engine.rounds.secure import SecureResult, SecureRound, Tamper, honest
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring, Signed
from protocol.errors import ConfigurationError
from protocol.parameters import Needs, StudyParameters
from protocol.release import self_weighted_bound
from protocol.summary.layout import Layout, summary_parameters
from protocol.wire.messages import Announcement, Purpose

LEAST_CONTRIBUTORS = 3


@dataclass(frozen=True, eq=False)
class SummaryInput:
    """A site's protected table, plain integers."""

    site: str
    shared: Signed = field(repr=False)

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        """uint64[L]; nothing is rounded."""
        return self.shared.astype("<u8")


def secure_sum(layout: Layout, shared: Mapping[str, Signed], seed: bytes, tamper: Tamper = honest) -> SecureResult:
    """The sum of what sites share, the requester's first; ``total`` is None where too few are left after the checks.

    Raises: ConfigurationError for fewer than three contributors
    """
    requester, *others = shared
    if len(others) < LEAST_CONTRIBUTORS:
        raise ConfigurationError(f"a summary sums {LEAST_CONTRIBUTORS} contributors or more, found {len(others)}")
    entries = [SiteEntry(site, 1) for site in shared]
    roster = make_parties("summary", requester, entries, derive(seed, "parties")).roster.message
    parameters = summary_parameters(layout.length, least_contributors=LEAST_CONTRIBUTORS, assumed_colluders=0)
    announcement = Announcement(
        study_digest=NO_SECRET,
        round=1,
        listed=tuple(others),
        least_contributors=LEAST_CONTRIBUTORS,
        opens=Needs.NOTHING,
        purpose=Purpose.SUMMARY,
        model_version=0,
        model_digest=NO_SECRET,
        weight_list_digest=NO_SECRET,
        closes_at_s=0,
    )
    whole = SecureRound(
        roster,
        parameters,
        announcement,
        derive(seed, "round"),
        correlations_from("ot", derive(seed, "correlations")),
        lambda released: self_weighted_bound(parameters, len(released)),
        tamper,
    )
    inputs = [SummaryInput(site, vector) for site, vector in shared.items()]
    return whole.run(inputs, lambda opened: judge_sum(opened, requester, 1))
