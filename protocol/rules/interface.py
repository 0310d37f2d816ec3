"""The interface of an aggregation rule: pure steps from one frozen state to the next (docs/protocol.md 8, 10).

A rule runs at the requester alone. It sees names, sample counts and distances, never a share or an update,
and its state serialises without loss, so that the requester can checkpoint it between any two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from protocol.arithmetic.fixed_point import quantise_weight
from protocol.errors import ProtocolViolation
from protocol.messages.round import ListedWeight
from protocol.parameters import Needs, Record

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Options(Record):
    """A rule's options, or some that several rules share, as a study has them; each has a default."""


class SiteFacts(Record):
    """A contributor's name and |S_i|, its number of training samples as declared at enrolment."""

    name: str
    samples: Annotated[int, Field(ge=1)]


class SiteStanding(Record):
    """One contributor as the rule sees it: alpha in full precision, and the released rounds it was part of."""

    name: str
    samples: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    rounds: Annotated[int, Field(ge=0)] = 0


class RunningMean(Record):
    """The mean over ``rounds`` rounds of something about the sites ``of``."""

    of: tuple[str, ...]
    value: Finite
    rounds: Annotated[int, Field(ge=0)]

    def with_value(self, value: float) -> Self:
        rounds = self.rounds + 1
        return self.model_copy(update={"value": self.value + (value - self.value) / rounds, "rounds": rounds})


class RuleState(Record):
    """Every contributor ever admitted, in order of admission; alpha 0 means that it is not listed any more.

    ``means`` are what a rule that weighs by risk has averaged, ``since_measured`` the summed rounds since its last
    measured one, None before the first.
    """

    sites: tuple[SiteStanding, ...]
    means: tuple[RunningMean, ...] = ()
    since_measured: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [site.name for site in self.sites]
        if len(set(names)) != len(names):
            raise ValueError("a site is admitted twice")
        return self

    def alpha_of(self, name: str) -> float:
        """Alpha of an admitted site; ProtocolViolation for a name that was never admitted."""
        for site in self.sites:
            if site.name == name:
                return site.alpha
        admitted = [site.name for site in self.sites]
        raise ProtocolViolation(f"site {name!r} was never admitted to the rule; admitted are {admitted}")


class PairDistance(Record):
    """||w_i g_i - w_j g_j|| of two sites by the round's weights, the requester's 1: ||g_i - g_j|| where all are 1."""

    first: str
    second: str
    distance: NonNegative


class Measured(Record):
    """The values that the requester opened in one round; what the rule does not need is empty.

    ``took_part`` are the contributors in the release set (before :meth:`Rule.select`: those that passed every check),
    the requester not counted. ``distances`` holds ||g_i - g_0||, ``norms`` ||g_i|| and ``inner_products``
    <g_i, v>, v being the requester's probe of length ``probe_norm``; ``pairs`` names the requester too.
    ``requester_norm`` is the norm of the clipped g_0, ``requester_inner_product`` <g_0, v>: it computes both itself,
    as well as, for a rule that weighs by risk, ``variance``, tr Cov of its clipped g_0, and ``from_mean``, the distance
    of g_0 from the plain mean of everybody's update, from the opened sum.
    """

    round: Annotated[int, Field(ge=1)]
    distances: tuple[tuple[str, NonNegative], ...] = ()
    norms: tuple[tuple[str, NonNegative], ...] = ()
    inner_products: tuple[tuple[str, Finite], ...] = ()
    pairs: tuple[PairDistance, ...] = ()
    requester_norm: NonNegative
    requester_inner_product: Finite = 0.0
    probe_norm: NonNegative = 0.0
    variance: NonNegative | None = None
    from_mean: NonNegative | None = None
    took_part: tuple[str, ...]

    def distance_of(self, name: str) -> float:
        """The opened distance of a site that took part; ProtocolViolation when it is missing."""
        for site, distance in self.distances:
            if site == name:
                return distance
        raise ProtocolViolation(f"round {self.round}: no distance was opened for site {name!r}, which took part")


class Rule(Protocol):
    """A pure aggregation rule; options, batch size and weight grid are fixed when it is made."""

    @property
    def needs(self) -> Needs: ...

    @property
    def weights_never_rise(self) -> bool: ...

    @property
    def selects(self) -> bool:
        """True if the rule releases only some of the sites that passed every check."""
        ...

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        """State before round 1, the requester not among the sites."""
        ...

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        """State with late joiners added; a site that is admitted already is left as it is."""
        ...

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        """The contributors to release, among those that passed every check, before the sum is opened."""
        ...

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """State after a released round; never called for a skipped or burnt one."""
        ...

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        """The next weight list: every site whose weight is not 0, as numerators over the grid."""
        ...


def nothing(*_: object) -> None:
    """No check."""


@dataclass(frozen=True)
class Declared:
    """A rule's declaration to studies, servers and sites, made in its own file.

    ``make`` gets the options, b of docs/protocol.md 10 in samples, and the study's weight grid; ``options`` names those
    that the rule takes. ``opens`` is what it has opened in every round besides the range check, ``bounded_by`` what a
    norm bound has. ``self_weighted``: every site computes its own weight, which nobody else sees; ``counts_classes``:
    the sites' class counts are summed once, before the first update (docs/protocol.md 9). ``measures``: what rounds of
    their own open, in which all weights are 1 and nothing is summed. ``only_averages``: sums of
    weighted updates are all that it asks of a server, so ciphertexts will do. ``alone``: it has no contributors.
    ``looks_at_examples``: weights follow from some site's examples by another way than the updates that are shared, so
    noise in those does not cover them (docs/protocol.md 19).
    ``check`` refuses options, ``check_sites`` options for these contributors and this least number of them, both by a
    ConfigurationError before a study starts.
    """

    name: str
    make: Callable[[Any, int, int], Rule]
    options: tuple[str, ...] = ()
    opens: Needs = Needs.NOTHING
    bounded_by: Needs = Needs.NORMS
    self_weighted: bool = False
    counts_classes: bool = False
    measures: Needs = Needs.NOTHING
    only_averages: bool = False
    alone: bool = False
    looks_at_examples: bool = False
    check: Callable[[Any], None] = nothing
    check_sites: Callable[[Any, Sequence[str], int], None] = nothing


def standings(sites: tuple[SiteFacts, ...], alpha: float) -> tuple[SiteStanding, ...]:
    """Fresh standings of newly admitted sites."""
    return tuple(SiteStanding(name=site.name, samples=site.samples, alpha=alpha) for site in sites)


def newcomers(state: RuleState, sites: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """The sites among ``sites`` that the state does not hold yet."""
    known = {site.name for site in state.sites}
    return tuple(site for site in sites if site.name not in known)


def within_bound(measured: Measured, norm_bound: float | None) -> tuple[str, ...]:
    """Those that passed every check and whose opened norm is at most the bound; all of them without one.

    Source:  norm bounding, Sun, Kairouz, Suresh, McMahan 2019, 3.3, by leaving out instead of clipping
    Raises:  ProtocolViolation when a norm is missing
    """
    if norm_bound is None:
        return measured.took_part
    norms = dict(measured.norms)
    missing = [name for name in measured.took_part if name not in norms]
    if missing:
        raise ProtocolViolation(f"round {measured.round}: no norm was opened for {missing}, which took part")
    return tuple(name for name in measured.took_part if norms[name] <= norm_bound)


def require_admitted(state: RuleState, measured: Measured) -> None:
    """ProtocolViolation when a site took part that was never admitted."""
    for name in measured.took_part:
        state.alpha_of(name)


def counted(state: RuleState, measured: Measured) -> RuleState:
    """State with one more round for every site that took part, and no weight changed.

    Raises: ProtocolViolation when a site took part that was never admitted
    """
    require_admitted(state, measured)
    present = set(measured.took_part)
    sites = tuple(
        site.model_copy(update={"rounds": site.rounds + 1}) if site.name in present else site for site in state.sites
    )
    return state.model_copy(update={"sites": sites})


def _one(name: str) -> float:
    return 1.0


def listed(state: RuleState, grid: int, second_weight: Callable[[str], float] = _one) -> tuple[ListedWeight, ...]:
    """Alphas, each times the site's second weight, rounded to the grid; without those that round to 0.

    Source: docs/protocol.md 2
    """
    rounded = ((site.name, quantise_weight(site.alpha * second_weight(site.name), grid)) for site in state.sites)
    return tuple(ListedWeight(site=name, numerator=numerator) for name, numerator in rounded if numerator > 0)


class EqualRule:
    """Weight ``START`` for everybody, always, and no update is left out: what other rules change step by step."""

    START: ClassVar[float] = 1.0
    grid: int

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        return RuleState(sites=standings(sites, self.START))

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        joined = standings(newcomers(state, sites), self.START)
        return RuleState(sites=state.sites + joined, means=state.means, since_measured=state.since_measured)

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        return measured.took_part

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """Counts who was released; no weight changes."""
        return counted(state, measured)

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return listed(state, self.grid)


MOST_MEASURE_TRIES: Final = 3
"""Measured rounds in a row that fail before a study without any list goes on alone."""


@dataclass(frozen=True)
class SamplingNoise:
    """The growth of a site's tr Cov with its samples: with S steps over n samples, S^2 / n."""

    update: Literal["gradient", "local_sgd"]
    batch_size: int
    requester_samples: int

    def of(self, samples: int) -> float:
        """v_i / v_0 of a site with so many training samples, were its examples spread as the requester's are."""
        return self._relative(samples) / self._relative(self.requester_samples)

    def _relative(self, samples: int) -> float:
        if self.update == "gradient":
            return 1 / min(self.batch_size, samples)
        return (-(-samples // self.batch_size)) ** 2 / samples


@dataclass(frozen=True)
class ListTerms:
    """The demands of sites' policies on a list (docs/protocol.md 9), and the sites' noise; None: as the requester's.

    ``least`` is m, ``colluders`` t, ``largest_share`` that of the sum's smallest possible weight.
    """

    least: int = 1
    colluders: int = 0
    largest_share: Fraction = Fraction(1)
    noise: SamplingNoise | None = None

    def sure(self, listed: int) -> int:
        """The number of others that are sure to be in the sum: k = m - 1 - t, at most all of them."""
        return max(0, min(self.least - 1 - self.colluders, listed - 1))


@runtime_checkable
class RiskRule(Rule, Protocol):
    """A rule that needs the noise of the requester's own update, and chooses the requester's weight too."""

    @property
    def measures(self) -> bool:
        """True if the rule learns from rounds of their own, and not from those that are summed."""
        ...

    def within(self, terms: ListTerms) -> Self:
        """The same rule under these terms."""
        ...

    def own_numerator(self, state: RuleState) -> int:
        """The requester's weight over the grid."""
        ...

    def measures_next(self, state: RuleState) -> bool:
        """Return whether the next round should measure all sites and sum nothing."""
        ...


def own_numerator(rule: Rule, state: RuleState) -> int | None:
    """The requester's weight over the grid; None under all other rules, where it is 1."""
    return rule.own_numerator(state) if isinstance(rule, RiskRule) else None


def measures_next(rule: Rule, state: RuleState) -> bool:
    """Return whether the rule asks for a round that measures all sites."""
    return isinstance(rule, RiskRule) and rule.measures_next(state)


def without(state: RuleState, names: tuple[str, ...]) -> RuleState:
    """The state as it is for listing: sites that are not listed any more are not weighed."""
    return state.model_copy(update={"sites": tuple(site for site in state.sites if site.name not in names)})
