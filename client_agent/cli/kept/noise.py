"""``moiety study noise``: how much noise a study needs for an epsilon, before its file is written."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated

import typer

from client_agent.cli.options import JsonOption
from client_agent.learning.private.drawn_rows import drawing_probability, steps_of
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of, noise_for
from protocol.wire.messages import MOST_NOISE, TrainingSpec
from protocol.wire.studies.privacy import LEAST_NOISE


def noise(
    epsilon: Annotated[float, typer.Option(min=0.01, help="What the whole study may spend at that site.")],
    delta: Annotated[float, typer.Option(min=1e-15, max=0.01, help="Well below one over the number of examples.")],
    examples: Annotated[int, typer.Option(min=1, help="Training examples of the site that has the fewest.")],
    batch_size: Annotated[int, typer.Option(min=1, help="As in the study's [training].")],
    rounds: Annotated[int, typer.Option(min=1, help="As in the study.")],
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs a round of local SGD; without it one gradient a round.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """The smallest noise multiplier with which a study keeps an epsilon at its smallest site."""
    training = TrainingSpec(batch_size=batch_size)
    if epochs is not None:
        training = TrainingSpec(update="local_sgd", batch_size=batch_size, epochs=epochs)
    drawn, steps = drawing_probability(examples, batch_size), rounds * steps_of(examples, training)
    exact = max(LEAST_NOISE, noise_for(epsilon, delta, drawn, steps, MOST_NOISE))
    found = math.ceil(exact * 1000) / 1000  # no digit that is cut off spends more
    spent = epsilon_of([Steps(drawn, found, steps)], delta)
    if json_output:
        told = {"noise_multiplier": found, "epsilon": spent, "delta": delta, "accountant": accountant()}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        what = f"epsilon {spent:.3f} at delta {delta:g}, {accountant()}"
        sys.stdout.write(f"noise_multiplier = {found:.3f}    # {what}\n")
