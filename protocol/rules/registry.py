"""Make a rule from a study's specification, and refuse bad ones before the study starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.errors import ConfigurationError
from protocol.rules.interface import Rule
from protocol.rules.risk.terms import ListTerms, RiskRule
from protocol.wire.studies.rule import RuleName, RuleSpec

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
