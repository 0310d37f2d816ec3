"""``moiety study noise`` and ``epsilon``: how much noise an epsilon takes, and what a study file would spend."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from client_agent.cli.lines import json_line
from client_agent.cli.tables import JsonLinesOption, JsonOption, add_row, console, table
from client_agent.learning.private.drawn_rows import drawing_probability, steps_of
from client_agent.learning.study_file import StudyTable, parse_study_table
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of, noise_for
from host.settings import read_text
from protocol.errors import ConfigurationError
from protocol.messages.control import MOST_NOISE, TrainingSpec
from protocol.messages.specifications import LEAST_NOISE

_ROUNDS: Final = (0.25, 0.5, 1, 2)
_NOISE: Final = (0.25, 0.5, 1, 2, 4)
EpsilonOption = Annotated[float, typer.Option(min=0.01, help="What the whole study may spend at that site.")]
DeltaOption = Annotated[float, typer.Option(min=1e-15, max=0.01, help="Well below one over the number of examples.")]
ExamplesOption = Annotated[
    int,
    typer.Option(min=1, help="Training examples of a site. With local SGD not always the fewest spend most."),
]


def noise(
    epsilon: EpsilonOption,
    delta: DeltaOption,
    rounds: Annotated[int, typer.Option(min=1, help="As in the study.")],
    examples: ExamplesOption,
    batch_size: Annotated[int, typer.Option(min=1, help="As in the study's [training].")],
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs a round of local SGD; without it one gradient a round.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """The least noise multiplier under which a study keeps an epsilon of a record at a site of so many."""
    drawn, steps = _per_round(examples, _training(batch_size, epochs))
    steps *= rounds
    exact = max(LEAST_NOISE, noise_for(epsilon, delta, drawn, steps, MOST_NOISE))
    found = math.ceil(exact * 1000) / 1000  # no digit that is cut off spends more
    spent = epsilon_of([Steps(drawn, found, steps)], delta)
    if json_output:
        told = {"noise_multiplier": found, "epsilon": spent, "delta": delta, "accountant": accountant()}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        what = f"epsilon {spent:.3f} at delta {delta:g} of a record, {accountant()}"
        sys.stdout.write(f"noise_multiplier = {found:.3f}    # {what}\n")


def epsilon(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="A study, or the plan of one.")],
    delta: DeltaOption,
    examples: ExamplesOption,
    json_output: JsonLinesOption = False,
) -> None:
    """Show what a study file would spend, and with other rounds and other noise; nothing is sent or kept."""
    source = str(study_file)
    study = parse_study_table(read_text(study_file), source)
    if study.privacy is None:
        raise ConfigurationError(f"{source}: the study has no [privacy] table, so nothing bounds what it would spend")
    choices = tuple(_choices(study, study.privacy.noise_multiplier, delta, examples))
    if json_output:
        for one in choices:
            asked = {"rounds": one.rounds, "noise_multiplier": one.noise_multiplier, "as_written": one.as_written}
            json_line({**asked, "epsilon": one.epsilon, "delta": delta})
        return
    multipliers = sorted({one.noise_multiplier for one in choices})
    shown = table(
        "rounds",
        *(f"noise {multiplier:g}" for multiplier in multipliers),
        title=f"epsilon of one record at a site of {examples} examples at delta {delta:g}; * is the file's",
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


def _training(batch_size: int, epochs: int | None) -> TrainingSpec:
    if epochs is None:
        return TrainingSpec(batch_size=batch_size)
    return TrainingSpec(update="local_sgd", batch_size=batch_size, epochs=epochs)


def _per_round(examples: int, training: TrainingSpec) -> tuple[float, int]:
    """Return the probability of a record in a step, and the steps of a round."""
    return drawing_probability(examples, training.batch_size), steps_of(examples, training)
