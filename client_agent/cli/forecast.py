"""Forecasts of a study before it is created: what policies and budgets allow, what its noise spends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from client_agent.cli.tables import add_row, answer, console, json_line, table
from client_agent.learning.data_check import fitting_data
from client_agent.learning.sampling import drawing_probability, steps_of
from client_agent.learning.study_file import FinishTable, StudyTable, parse_study_table
from client_agent.settings import AgentSettings
from client_agent.site.privacy_budget import Steps, accountant, budget_memory, epsilon_of, noise_for, share_used
from client_agent.study.privacy_spending import least_spent, require_room_for
from host.settings import read_text
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.messages.control import MOST_NOISE, Roster, RuleName, Study, TrainingSpec
from protocol.messages.specifications import LEAST_NOISE
from protocol.policy.clauses import foresee
from protocol.policy.site_policy import SitePolicy, check_study_allowed, list_terms
from protocol.rules.registry import rule_for


class _Shown(BaseModel):
    """The one table that is read of what another site shows."""

    model_config = ConfigDict(extra="ignore")
    policy: SitePolicy


def require_federated(study: Study, roster: Roster, own: SitePolicy, shown: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Remarks for the requester about a study that this policy and those in ``shown`` let begin.

    Raises: PolicyRefusal of the own policy; ConfigurationError when a policy would decline every list
    """
    check_study_allowed(study, own)
    remarks = _foreseen(study, roster, own, "this site's policy")
    for path in shown:
        policy = _policy_in(path)
        try:
            check_study_allowed(study, policy)
        except PolicyRefusal as refused:
            raise ConfigurationError(f"the policy in {path} refuses the study: {refused.detail}") from None
        _foreseen(study, roster, policy, f"the policy in {path}")
        require_shown_budget(study, roster, policy, f"the policy in {path}")
    return remarks


def _foreseen(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> tuple[str, ...]:
    if study.rule.name is RuleName.LOCAL:
        return ()
    contributors = tuple(party.name for party in roster.contributors)
    rule = rule_for(
        study.rule,
        batch_size=study.training.batch_size,
        grid=study.parameters.weight_grid,
        terms=list_terms(study, policy, 1),
    )
    found = foresee(study, contributors, rule, policy)
    count = len(contributors)
    if found.refused is not None:
        raise ConfigurationError(
            f"NOT FEDERATED: {whose} declines every list that the roster's {count} contributors allow, so this site "
            f"would train alone: {found.refused.detail}; enrol more sites, or lower what the policy asks for "
            "(assumed_colluders, least_contributors; a larger largest_share) where that may be"
        )
    if not found.spare:
        return (
            f"each of the roster's {count} contributors must be in every sum: when one stays away, fails a check or is "
            "given no weight by the rule, the shared part ends and this site trains alone (LOCAL_ONLY)",
        )
    return ()


def _policy_in(path: Path) -> SitePolicy:
    """The [policy] of another site's settings, or of a file that has nothing else. Raises: ConfigurationError"""
    return validated(_Shown, parse_toml(read_text(path), str(path)), str(path)).policy


def require_own_budget(study: Study, settings: AgentSettings, came_with: str, finish: FinishTable | None) -> None:
    """All rounds fit into what is left of this site's budget. Raises: PolicyRefusal, ConfigurationError"""
    if study.privacy is None:
        return
    train = fitting_data(study, settings.data, None).train
    seen = train if finish is None else finish.parts(train, 0)[0]
    require_room_for(study, len(seen), budget_memory(settings.state_dir, came_with), settings.policy)


def require_shown_budget(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> None:
    """An unspent budget holds the study at one declared number of samples at least: else it does at no contributor.

    Raises: ConfigurationError
    """
    if study.privacy is None or policy.epsilon is None:
        return
    epsilon, counts = policy.epsilon, {party.samples or 1 for party in roster.contributors}
    samples, needed = least_spent(
        study, study.privacy, counts, lambda steps: share_used([steps], epsilon, policy.delta)
    )
    if needed > 1:
        raise ConfigurationError(
            f"{whose} has a privacy budget of epsilon {policy.epsilon:g} at delta {policy.delta:g}, and the study's "
            f"{study.rounds} rounds use {needed:.0%} of it at a contributor of {samples} samples, more at all others: "
            "take more noise, smaller batches or fewer rounds"
        )


_ROUNDS: Final = (0.25, 0.5, 1, 2)
_NOISE: Final = (0.25, 0.5, 1, 2, 4)


def show_least_noise(study_file: Path, delta: float, samples: int, target: float, *, json_output: bool) -> None:
    """The least noise multiplier under which the study of a file keeps the epsilon ``target`` of a record."""
    study = parse_study_table(read_text(study_file), str(study_file))
    drawn, steps = _per_round(samples, study.training)
    steps *= study.rounds
    exact = max(LEAST_NOISE, noise_for(target, delta, drawn, steps, MOST_NOISE))
    found = math.ceil(exact * 1000) / 1000  # no digit that is cut off spends more
    spent = epsilon_of([Steps(drawn, found, steps)], delta)
    values = {"noise_multiplier": found, "epsilon": spent, "delta": delta, "accountant": accountant()}
    what = f"epsilon {spent:.3f} at delta {delta:g} of a record, {accountant()}"
    answer(values, f"noise_multiplier = {found:.3f}    # {what}", json_output=json_output)


def show_epsilon(study_file: Path, delta: float, samples: int, *, json_output: bool) -> None:
    """Show what a study file would spend, and with other rounds and other noise. Raises: ConfigurationError"""
    source = str(study_file)
    study = parse_study_table(read_text(study_file), source)
    if study.privacy is None:
        raise ConfigurationError(f"{source}: the study has no [privacy] table, so nothing bounds what it would spend")
    choices = tuple(_choices(study, study.privacy.noise_multiplier, delta, samples))
    if json_output:
        for one in choices:
            json_line({**one._asdict(), "delta": delta})
        return
    multipliers = sorted({one.noise_multiplier for one in choices})
    shown = table(
        "rounds",
        *(f"noise {multiplier:g}" for multiplier in multipliers),
        title=f"epsilon of one record at a site of {samples} examples at delta {delta:g}; * is the file's",
        caption=accountant(),
    )
    for rounds in sorted({one.rounds for one in choices}):
        of = {one.noise_multiplier: one for one in choices if one.rounds == rounds}
        row = (of[multiplier] for multiplier in multipliers)
        add_row(shown, str(rounds), *(f"{one.epsilon:.3f}{'*' if one.as_written else ''}" for one in row))
    console().print(shown)


class _Choice(NamedTuple):
    """So many rounds under one noise multiplier, and what they spend."""

    rounds: int
    noise_multiplier: float
    as_written: bool
    epsilon: float


def _choices(study: StudyTable, written: float, delta: float, examples: int) -> Iterator[_Choice]:
    """The file's rounds and noise, a few smaller and larger ones."""
    drawn, steps = _per_round(examples, study.training)
    for rounds in sorted({max(1, round(study.rounds * times)) for times in _ROUNDS}):
        for multiplier in sorted({min(MOST_NOISE, max(LEAST_NOISE, written * times)) for times in _NOISE}):
            spent = epsilon_of([Steps(drawn, multiplier, steps * rounds)], delta)
            yield _Choice(rounds, multiplier, (rounds, multiplier) == (study.rounds, written), spent)


def _per_round(examples: int, training: TrainingSpec) -> tuple[float, int]:
    """Return the probability of a record in a step, and the steps of a round."""
    return drawing_probability(examples, training.batch_size), steps_of(examples, training)
