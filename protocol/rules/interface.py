"""What every aggregation rule is: pure steps from one frozen state to the next (docs/protocol.md 8, 10).

A rule runs at the requester alone. It sees names, sample counts and distances, never a share or an update,
and its state serialises without loss, so that the requester can checkpoint it between any two rounds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.arithmetic.fixed_point import quantise_weight
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.wire.messages import ListedWeight, RuleSpec

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Needs(StrEnum):
    """What a rule asks the requester to open besides the range check."""

    NOTHING = "nothing"
    DISTANCES = "distances"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SiteFacts(_Frozen):
    """A contributor's name and |S_i|, its number of training samples as declared at enrolment."""

    name: str
    samples: Annotated[int, Field(ge=1)]


class SiteStanding(_Frozen):
    """One contributor as the rule sees it: alpha in full precision, and the released rounds it was part of."""

    name: str
    samples: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    rounds: Annotated[int, Field(ge=0)] = 0


class RuleState(_Frozen):
    """Every contributor ever admitted, in order of admission; alpha 0 means that it is not listed any more."""

    sites: tuple[SiteStanding, ...]

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


class Measured(_Frozen):
    """What the requester opened in one released round.

    ``took_part`` are the contributors in the release set, the requester not counted. ``distances`` holds
    ||g_i - g_0|| for them, empty when the rule needs none; ``requester_norm`` is the norm of the clipped g_0.
    """

    round: Annotated[int, Field(ge=1)]
    distances: tuple[tuple[str, NonNegative], ...] = ()
    requester_norm: NonNegative
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

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        """State before round 1, the requester not among the sites."""
        ...

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        """State with late joiners added; a site that is admitted already is left as it is."""
        ...

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        """State after a released round; never called for a skipped or burnt one."""
        ...

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        """The next weight list: every site whose weight is not 0, as numerators over the grid."""
        ...


def standings(sites: tuple[SiteFacts, ...], alpha: float) -> tuple[SiteStanding, ...]:
    """Fresh standings of newly admitted sites."""
    return tuple(SiteStanding(name=site.name, samples=site.samples, alpha=alpha) for site in sites)


def newcomers(state: RuleState, sites: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """The sites among ``sites`` that the state does not hold yet."""
    known = {site.name for site in state.sites}
    return tuple(site for site in sites if site.name not in known)


def require_admitted(state: RuleState, measured: Measured) -> None:
    """ProtocolViolation when a site took part that was never admitted."""
    for name in measured.took_part:
        state.alpha_of(name)


def listed(state: RuleState, grid: int) -> tuple[ListedWeight, ...]:
    """Alphas rounded to the grid, without the sites whose weight rounds to 0 (docs/protocol.md 2)."""
    rounded = ((site.name, quantise_weight(site.alpha, grid)) for site in state.sites)
    return tuple(ListedWeight(site=name, numerator=numerator) for name, numerator in rounded if numerator > 0)


def refuse_options(spec: RuleSpec, *options: str) -> None:
    """ConfigurationError when one of ``options``, which the rule does not take, is set to other than its default."""
    for option in options:
        default = RuleSpec.model_fields[option].default
        found = getattr(spec, option)
        if found != default:
            raise ConfigurationError(
                f"rule {spec.name.value!r} takes no option {option!r}, found {found!r}: leave it out"
            )
