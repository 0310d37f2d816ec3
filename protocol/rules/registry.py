"""Make a rule from a study's specification, and refuse bad ones before the study starts.

A package's rule runs in plain simulations only. Its answers are checked in every round: nobody here has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from protocol.configuration import validated
from protocol.errors import ConfigurationError
from protocol.messages.control import ListedWeight
from protocol.messages.specifications import RuleName, RuleSpec
from protocol.parameters import Needs
from protocol.rules.interface import ListTerms, Measured, RiskRule, Rule, RuleState, SiteFacts

OPTIONS: Final[dict[RuleName, tuple[str, ...]]] = {name: name.declared.options for name in RuleName}
"""The options that each rule takes; the others must be left out.

Where sites weigh themselves, ``norm_bound`` opens the norm of (w g, w C), which lies between w C and 1.42 w C and so
shows w: a need of its own, which sites' policies do not allow by default.
"""


def rule_for(spec: RuleSpec, *, batch_size: int, grid: int, terms: ListTerms | None = None) -> Rule:
    """The rule a study asks for.

    ``batch_size`` is b of docs/protocol.md 10, in samples; ``grid`` the study's weight grid; ``terms`` are for a rule
    that weighs by risk, where it makes lists.
    Raises: ConfigurationError naming an option that the rule does not take, or cannot take with this value
    """
    refuse_options(spec)
    spec.name.declared.check(spec)
    rule = spec.name.declared.make(spec, batch_size, grid)
    return rule.within(terms) if terms is not None and isinstance(rule, RiskRule) else rule


def refuse_options(spec: RuleSpec) -> None:
    """ConfigurationError when an option that the rule does not take is set to other than its default."""
    taken = OPTIONS[spec.name]
    for option, field in RuleSpec.model_fields.items():
        found = getattr(spec, option)
        if option != "name" and option not in taken and found != field.default:
            allowed = ", ".join(taken) or "none at all"
            raise ConfigurationError(
                f"rule {spec.name.value!r} takes no option {option!r}, found {found!r}: leave it out; "
                f"its options are: {allowed}"
            )


def require_sites(spec: RuleSpec, contributors: Sequence[str], least_contributors: int = 1) -> None:
    """Refuse, before a study starts, sites with which no round of it could be released.

    ``contributors`` are the names of the roster's sites without the requester; ``least_contributors`` is m of
    docs/protocol.md 9.
    Raises: ConfigurationError
    """
    if spec.name.declared.alone:
        return
    if len(contributors) < least_contributors:
        raise ConfigurationError(
            f"{len(contributors)} sites besides the requester are too few for least_contributors={least_contributors}: "
            "let more sites join, or agree on a smaller number"
        )
    spec.name.declared.check_sites(spec, contributors, least_contributors)


SEPARATOR: Final = ":"
"""Between package and rule; no rule of the protocol has it in its name."""


@dataclass(frozen=True)
class PackagedRule:
    """The object behind an entry point: the model of the rule's options, and ``make(options, batch_size, grid)``.

    ``options`` refuses unknown keys (``extra="forbid"``); ``batch_size`` is b of docs/protocol.md 10, in samples,
    ``grid`` the study's weight grid.
    """

    options: type[BaseModel]
    make: Callable[[Any, int, int], Rule]


def packaged_rule_for(
    name: str, offered: object, options: Mapping[str, Any], *, batch_size: int, grid: int
) -> CheckedRule:
    """The rule that a package offers under ``name``, with these options.

    Raises: ConfigurationError for options that the rule's own model refuses, and for what is no rule
    """
    where = f"rule {name!r}"
    if not isinstance(offered, PackagedRule):
        raise ConfigurationError(f"{where}: the entry point leads to {type(offered).__name__}, expected a PackagedRule")
    if offered.options.model_config.get("extra") != "forbid":
        raise ConfigurationError(f"{where}: its options let unknown keys pass: give their model extra='forbid'")
    try:
        made = offered.make(validated(offered.options, options, where), batch_size, grid)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    needs = getattr(made, "needs", None)
    if not isinstance(needs, Needs) or needs is Needs.WEIGHTED_NORMS:
        raise ConfigurationError(
            f"{where}: make() gave {type(made).__name__}, whose 'needs' is {needs!r}; expected a rule with a Needs, "
            "and not Needs.WEIGHTED_NORMS, which is for sites that weigh themselves"
        )
    return CheckedRule(name, made, grid)


@dataclass(frozen=True)
class CheckedRule:
    """A rule that keeps to its interface. Every method raises ConfigurationError when the rule inside does not."""

    name: str
    inner: Rule
    grid: int

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def weights_never_rise(self) -> bool:
        return self.inner.weights_never_rise

    @property
    def selects(self) -> bool:
        return self.inner.selects

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        return self._state(self.inner.init(sites), "init")

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        return self._state(self.inner.admit(state, sites), "admit")

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        """See :class:`Rule`; only a rule that says so leaves anybody out."""
        selected = self.inner.select(state, measured)
        among = set(selected) <= set(measured.took_part) and len(set(selected)) == len(selected)
        if not among or (not self.selects and len(selected) != len(measured.took_part)):
            raise self._mistake("select", selected, f"{'some' if self.selects else 'all'} of {measured.took_part}")
        return selected

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        return self._state(self.inner.apply(state, measured), "apply")

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        listed = self.inner.numerators(state)
        names = [weight.site for weight in listed]
        admitted = {site.name for site in state.sites}
        fits = all(weight.site in admitted and 0 < weight.numerator <= self.grid for weight in listed)
        if not fits or len(set(names)) != len(names):
            raise self._mistake("numerators", listed, f"admitted sites, each once, with 1 to {self.grid}")
        return listed

    def _state(self, state: RuleState, method: str) -> RuleState:
        if type(state) is not RuleState:  # another kind would not survive a checkpoint
            raise self._mistake(method, state, "a RuleState")
        return state

    def _mistake(self, method: str, found: object, expected: str) -> ConfigurationError:
        return ConfigurationError(f"rule {self.name!r}: {method}() gave {found!r}, expected {expected}")
