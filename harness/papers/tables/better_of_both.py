"""Whether a rule did as well as the better of training alone and FedAvg, for every requester of a case.

Which of the two is better is chosen for each requester by the same test losses that are then compared, so the better of
both looks a little better than it would be to somebody who had to choose beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from harness.papers.tables.by_requester import Lines, requesters
from harness.simulate.charts import Spread, of_variant
from harness.simulate.run_line import RunLine

LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
FINISHED: Final = "_finished"
_BY_ROUND: Final = ("test_accuracy", "test_loss", "test_log_loss", "test_auroc", "test_c_index", "test_rmse", "kind")


@dataclass(frozen=True)
class Beside:
    """A rule's loss less another's for one requester, same seed against same seed: below 0 the rule is better."""

    requester: str
    difference: Spread

    @property
    def better(self) -> bool:
        """By more than two standard errors."""
        return self.difference.clearly_negative

    @property
    def worse(self) -> bool:
        """By more than two standard errors."""
        return self.difference.clearly_positive


def with_rules_alone(lines: Lines) -> tuple[RunLine, ...]:
    """The lines, and for every rule that has run with a finish only its rounds before that.

    For finishes that hold nothing out of the rounds: these are then what they would be without a finish.
    """
    ran = {line.variant for line in lines}
    alone = (
        unfinished(line)
        for line in lines
        if line.variant.endswith(FINISHED) and line.variant.removesuffix(FINISHED) not in ran
    )
    return (*lines, *alone)


def unfinished(line: RunLine) -> RunLine:
    """The run up to its last round, under the rule's own name; a run that failed before its finish has none to cut."""
    cut = len(line.kind) - (line.kind[-1:] == ("finished",))
    shorter = {name: getattr(line, name)[:cut] for name in _BY_ROUND}
    metrics = {name: values[:cut] for name, values in line.test_metrics.items()}
    name = line.variant.removesuffix(FINISHED)
    return line.model_copy(update={**shorter, "variant": name, "test_metrics": metrics, "final_scores": None})


def losses(lines: Lines, variant: str, requester: str) -> dict[int, float]:
    """The loss on the requester's test part after the last round, by seed; NaN for a run that failed."""
    found = {}
    for line in of_variant(lines, variant, requester):
        last = line.test_loss[-1] if line.test_loss and line.end != "failed" else None
        found[line.seed] = math.nan if last is None else last
    return found


def better_losses(lines: Lines, requester: str) -> dict[int, float]:
    """Of training alone or of FedAvg, whichever has the smaller mean over the seeds of both; none without both."""
    alone, averaged = (losses(lines, variant, requester) for variant in (LOCAL, FEDAVG))
    seeds = sorted(alone.keys() & averaged.keys())
    if not seeds:
        return {}
    chosen = min((alone, averaged), key=lambda of: _mean([of[seed] for seed in seeds]))
    return {seed: chosen[seed] for seed in seeds}


def beside_better(lines: Lines, variant: str) -> tuple[Beside, ...]:
    """The rule beside the better of both, for every requester with a seed in which all have run."""
    return _beside(lines, variant, {name: better_losses(lines, name) for name in requesters(lines)})


def beside_rule(lines: Lines, variant: str, other: str = LOCAL) -> tuple[Beside, ...]:
    """The rule beside another one, training alone unless said otherwise."""
    return _beside(lines, variant, {name: losses(lines, other, name) for name in requesters(lines)})


def mean_beside_better(lines: Lines, variant: str) -> Spread | None:
    """The mean over requesters of the loss less that of the better of both; the standard error is over seeds.

    Seeds that lack a requester are left out.
    """
    gaps = []
    for name in requesters(lines):
        own, best = losses(lines, variant, name), better_losses(lines, name)
        gaps.append({seed: own[seed] - best[seed] for seed in own.keys() & best.keys()})
    seeds = sorted(set.intersection(*map(set, gaps))) if gaps else []
    return Spread.of([mean(of[seed] for of in gaps) for seed in seeds]) if seeds else None


def _beside(lines: Lines, variant: str, others: dict[str, dict[int, float]]) -> tuple[Beside, ...]:
    found = []
    for name, other in others.items():
        own = losses(lines, variant, name)
        apart = [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]
        if apart:
            found.append(Beside(name, Spread.of(apart)))
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    """A rule that failed once is not the better one."""
    return math.inf if any(math.isnan(value) for value in values) else mean(values)
