"""``moiety study epsilon``: what a study file would spend, and how much noise an epsilon takes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.cli.lines import json_line
from client_agent.cli.tables import add_row, console, table
from client_agent.learning.private.drawn_rows import drawing_probability, steps_of
from client_agent.learning.study_file import StudyTable, parse_study_table
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of, noise_for
from host.settings import read_text
from protocol.errors import ConfigurationError
from protocol.wire.messages import MOST_NOISE, TrainingSpec
from protocol.wire.studies.privacy import LEAST_NOISE

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
    if json_output:
        json_line({"noise_multiplier": found, "epsilon": spent, "delta": delta, "accountant": accountant()})
    else:
        what = f"epsilon {spent:.3f} at delta {delta:g} of a record, {accountant()}"
        sys.stdout.write(f"noise_multiplier = {found:.3f}    # {what}\n")


def show_epsilon(study_file: Path, delta: float, samples: int, *, json_output: bool) -> None:
    """Show what a study file would spend, and with other rounds and other noise. Raises: ConfigurationError"""
    source = str(study_file)
    study = parse_study_table(read_text(study_file), source)
    if study.privacy is None:
        raise ConfigurationError(f"{source}: the study has no [privacy] table, so nothing bounds what it would spend")
    choices = tuple(_choices(study, study.privacy.noise_multiplier, delta, samples))
    if json_output:
        for one in choices:
            asked = {"rounds": one.rounds, "noise_multiplier": one.noise_multiplier, "as_written": one.as_written}
            json_line({**asked, "epsilon": one.epsilon, "delta": delta})
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
        add_row(shown, str(rounds), *(of[multiplier].shown for multiplier in multipliers))
    console().print(shown)


@dataclass(frozen=True)
class _Choice:
    """So many rounds under one noise multiplier, and what they spend."""

    rounds: int
    noise_multiplier: float
    epsilon: float
    as_written: bool

    @property
    def shown(self) -> str:
        return f"{self.epsilon:.3f}{'*' if self.as_written else ''}"


def _choices(study: StudyTable, written: float, delta: float, examples: int) -> Iterator[_Choice]:
    """The file's rounds and noise, a few smaller and larger ones."""
    drawn, steps = _per_round(examples, study.training)
    for rounds in sorted({max(1, round(study.rounds * times)) for times in _ROUNDS}):
        for multiplier in sorted({min(MOST_NOISE, max(LEAST_NOISE, written * times)) for times in _NOISE}):
            spent = epsilon_of([Steps(drawn, multiplier, steps * rounds)], delta)
            yield _Choice(rounds, multiplier, spent, (rounds, multiplier) == (study.rounds, written))


def _per_round(examples: int, training: TrainingSpec) -> tuple[float, int]:
    """Return the probability of a record in a step, and the steps of a round."""
    return drawing_probability(examples, training.batch_size), steps_of(examples, training)
