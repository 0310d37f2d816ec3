"""The requester's judgement of a measured round: who passed the checks, and whom the rule selects (docs/protocol.md 8).

Pure: from what was opened to the release set's contributors. A deviating server can make any check fail, so a failed
check means "check failed", never "site cheated".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_agent.requester.measuring.allowed_lengths import too_long
from protocol.messages.control import RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rules.interface import Measured, PairDistance, Rule, RuleState, within_bound


@dataclass(frozen=True)
class RequesterFacts:
    """The requester's own part in a round: ||g_0|| clipped; ||v|| and <g_0, v> of its probe, 0 without one."""

    name: str
    norm: float
    probe_norm: float = 0.0
    inner_product: float = 0.0


@dataclass(frozen=True, eq=False)
class RoundRule:
    """The rule that judges a round: the study's rule with its options and its state before the round."""

    spec: RuleSpec
    rule: Rule
    state: RuleState
    parameters: StudyParameters


@dataclass(frozen=True)
class Judgement:
    """``measured.took_part`` are the contributors to release, in the agreed order.

    ``failed`` are the agreed sites that failed a check; ``not_selected`` passed them all, and the rule leaves them out.
    """

    measured: Measured
    failed: tuple[str, ...]
    not_selected: tuple[str, ...]
    requester_passed: bool

    @property
    def measured_anybody(self) -> bool:
        """True if a rule learns from the round where nothing is summed: pairs without the requester say nothing."""
        return self.requester_passed and bool(self.measured.took_part)

    def releases(self, least_contributors: int) -> bool:
        """Return whether a sum over what is left may be opened."""
        return self.requester_passed and len(self.measured.took_part) >= least_contributors


def judge(
    sites: Sequence[OpenedSite],
    requester: RequesterFacts,
    numerators: Mapping[str, int],
    by: RoundRule,
    *,
    round: int,
    opens: Needs,
) -> Judgement:
    """Keep those that are in range, no longer than a clipped update can be, within the norm bound, and selected.

    ``sites`` are the agreed ones, the requester among them; ``numerators`` their weights over the grid.

    Raises: ProtocolViolation when something that the rule needs was not opened
    """
    name, norm, probe_norm, byzantine = requester.name, requester.norm, requester.probe_norm, by.spec.byzantine
    beyond = too_long(sites, name, norm, probe_norm, numerators, by.parameters, opens, byzantine)
    passed = tuple(site.site for site in sites if site.in_range and site.site not in beyond)
    measured = _measured(sites, requester, passed, round, opens)
    bounded = within_bound(measured, by.spec.norm_bound)
    selected = bounded
    if bounded and requester.name in passed:  # otherwise there is nothing to choose from, and no sum
        selected = by.rule.select(by.state, measured.model_copy(update={"took_part": bounded}))
    kept = {*bounded, requester.name} & set(passed)
    return Judgement(
        measured=measured.model_copy(update={"took_part": selected}),
        failed=tuple(site.site for site in sites if site.site not in kept),
        not_selected=tuple(name for name in bounded if name not in selected),
        requester_passed=requester.name in passed,
    )


def judge_sum(sites: Sequence[OpenedSite], requester: str, round: int) -> Judgement:
    """Keep, in a sum of data, which no rule has a say in, those that are in range."""
    passed = tuple(site.site for site in sites if site.in_range)
    others = tuple(name for name in passed if name != requester)
    return Judgement(
        measured=Measured(round=round, requester_norm=0.0, took_part=others),
        failed=tuple(site.site for site in sites if not site.in_range),
        not_selected=(),
        requester_passed=requester in passed,
    )


def _measured(
    sites: Sequence[OpenedSite], requester: RequesterFacts, passed: tuple[str, ...], round_number: int, opens: Needs
) -> Measured:
    """Return what was opened about the sites that passed, as a rule sees it."""
    values = tuple((site.site, site.distance) for site in sites if site.site in passed and site.distance is not None)
    norms = opens.of_norms
    both = {*passed, requester.name}
    return Measured(
        round=round_number,
        distances=() if norms else values,
        norms=values if norms else (),
        inner_products=tuple(
            (site.site, site.inner_product) for site in sites if site.site in passed and site.inner_product is not None
        ),
        pairs=tuple(
            PairDistance(first=first, second=site.site, distance=distance)
            for site in sites
            for first, distance in site.pairs
            if {first, site.site} <= both
        ),
        requester_norm=requester.norm,
        probe_norm=requester.probe_norm,
        requester_inner_product=requester.inner_product,
        took_part=tuple(name for name in passed if name != requester.name),
    )
