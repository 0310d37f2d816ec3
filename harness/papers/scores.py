"""Scores after the last round, by rule and requester: what the tables about simulated runs share.

One round is drawn: the requester's update g_0 = e_0, with E||e_0||^2 = v_0 = 1 spread over ``parameters`` directions,
and those of ``sites`` others, g_i = d_i + e_i with the same noise and a bias of squared length ``bias`` (in units of
v_0) that points anywhere. The rule knows v_0 and sees the distances, of which the noise is part. Its weights follow
from the same noise that they are to average out, which the criterion does not count: with p parameters K_ij / v_0 has
a standard deviation of about sqrt(2 / p), however often the same examples are measured.

From the round to the loss: let the loss be quadratic with curvature H at the optimum, and weights stay. The rounds end
where the weighted gradient is zero, so the model is H^-1 e away from the optimum, e the weighted gradient's error
there, and the excess loss is e'H^-1 e / 2. Features that are whitened make H nearly c I; with n examples of a model
that is right, v_0 = c p / n. So the excess loss is ||e||^2 / v_0 times p / 2n.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from client_agent.learning.scores import MetricName, value_of, words_of
from harness.datasets.public_data import data_folder
from harness.simulate.charts import Curve, Spread
from harness.simulate.run_line import RunLine
from protocol.errors import ConfigurationError
from protocol.rules.interface import ListTerms
from protocol.rules.risk import best_choice, plug_in_risk

WORDS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Names in tables, by table, and numbers that papers published."""
LOSS: Final = "loss"
FINISHED: Final = "_finished"
LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
Row = tuple[str, ...]
Table = list[Row]
"""The heads, then the rows, as they are printed."""
_BY_ROUND: Final = ("test_accuracy", "test_loss", "test_log_loss", "test_auroc", "test_c_index", "test_rmse", "kind")


class Scores:
    """The runs of one case by variant, requester and seed."""

    def __init__(self, lines: Sequence[RunLine]) -> None:
        self.requesters = tuple(sorted({line.requester for line in lines}))
        self.variants = dict.fromkeys(line.variant for line in lines)
        frame = pd.DataFrame(
            {
                "variant": [line.variant for line in lines],
                "requester": [line.requester for line in lines],
                "seed": [line.seed for line in lines],
                "failed": [line.end == "failed" for line in lines],
                LOSS: [_last_loss(line) for line in lines],
                **{metric.value: [_last(line, metric) for line in lines] for metric in MetricName},
            }
        )
        self._nobody = frame[:0].set_index("seed")
        self._of = {key: of.set_index("seed").sort_index() for key, of in frame.groupby(["variant", "requester"])}

    def seeds(self, variant: str) -> int:
        """With how many a variant has run."""
        return len({seed for (name, _), of in self._of.items() if name == variant for seed in of.index})

    def values(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> pd.Series:
        """A series by seed. A run that failed is NaN and shows; one whose test part has no such metric is left out."""
        of = self._of.get((variant, requester), self._nobody)
        return of[metric] if metric == LOSS else of[metric][of.failed | of[metric].notna()]

    def spread(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Over seeds; None where no run has the metric."""
        return spread_of(self.values(variant, requester, metric))

    def over_requesters(self, variant: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Mean over requesters, the standard error over seeds; seeds that lack a requester are left out."""
        each = [self.values(variant, requester, metric).to_dict() for requester in self.requesters]
        seeds = sorted(set.intersection(*map(set, each))) if each else []
        return spread_of([mean(of[seed] for of in each) for seed in seeds])

    def better_of_both(self, requester: str) -> pd.Series:
        """Losses of training alone or of FedAvg, whichever has the smaller mean over the seeds of both.

        A rule that failed once is not the better one.
        """
        alone, averaged = (self.values(variant, requester, LOSS) for variant in (LOCAL, FEDAVG))
        seeds = alone.index.intersection(averaged.index)
        means = [of[seeds].mean(skipna=False) for of in (alone, averaged)]
        chosen = averaged if (math.inf if math.isnan(means[0]) else means[0]) > means[1] else alone
        return chosen[seeds]

    def less(self, variant: str, other: str, metric: str = MetricName.ACCURACY) -> dict[str, Spread]:
        """Subtract, by requester, one variant's metric from another's, same seed against same seed, so that the split
        cancels.

        ``other``: a variant, or ``better_of_both``, of losses.
        """
        found = {}
        for name in self.requesters:
            own = self.values(variant, name, metric)
            base = self.better_of_both(name) if other == BETTER else self.values(other, name, metric)
            seeds = own.index.intersection(base.index)
            if len(seeds):
                found[name] = Spread.of((own[seeds] - base[seeds]).tolist())
        return found


BETTER: Final = "better_of_both"


def spread_of(values: pd.Series | Sequence[float]) -> Spread | None:
    """None for no value."""
    return Spread.of(list(values)) if len(values) else None


def _last(line: RunLine, metric: MetricName) -> float:
    value = line.last_of(metric)
    if math.isnan(value) and line.final_scores is not None:
        final = value_of(line.final_scores.scores, metric)
        return math.nan if final is None else final
    return value


def _last_loss(line: RunLine) -> float:
    last = line.test_loss[-1] if line.test_loss and line.end != "failed" else None
    return math.nan if last is None else last


def with_rules_alone(lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
    """The lines, and for every rule that has run only with a finish its rounds before that.

    For finishes that hold nothing out of the rounds: these are then what they would be without a finish.
    """
    ran = {line.variant for line in lines}
    finished = [line for line in lines if line.variant.endswith(FINISHED)]
    return (*lines, *(unfinished(line) for line in finished if line.variant.removesuffix(FINISHED) not in ran))


def unfinished(line: RunLine) -> RunLine:
    """The run up to its last round, under the rule's own name; a run that failed before its finish has none to cut."""
    cut = len(line.kind) - (line.kind[-1:] == ("finished",))
    shorter = {name: getattr(line, name)[:cut] for name in _BY_ROUND}
    metrics = {name: values[:cut] for name, values in line.test_metrics.items()}
    name = line.variant.removesuffix(FINISHED)
    return line.model_copy(update={**shorter, "variant": name, "test_metrics": metrics, "final_scores": None})


def is_better(difference: Spread, metric: str) -> bool:
    """Return whether it is better by more than two standard errors."""
    smaller = metric == LOSS or MetricName(metric).smaller_is_better
    return difference.clearly_negative if smaller else difference.clearly_positive


def is_worse(difference: Spread, metric: str) -> bool:
    """Return whether it is worse by more than two standard errors."""
    smaller = metric == LOSS or MetricName(metric).smaller_is_better
    return difference.clearly_positive if smaller else difference.clearly_negative


def tally(found: Mapping[str, Spread], metric: str) -> str:
    """Better / not clearly different / worse; none where no run has the metric."""
    if not found:
        return "none"
    better, worse = (sum(count(one, metric) for one in found.values()) for count in (is_better, is_worse))
    return f"{better} / {len(found) - better - worse} / {worse}"


def signed(spread: Spread) -> str:
    """+.012 ± .003, bold where it is further than two standard errors from nothing."""
    error = "" if spread.error is None else f" ± {spread.error:.3f}"
    text = f"{spread.mean:+.3f}{error}"
    return f"**{text}**" if spread.clearly_positive or spread.clearly_negative else text


def shown(spread: Spread | None, nothing: str = "none") -> str:
    return nothing if spread is None else str(spread)


def scores_table(
    scores: Scores,
    rules: Mapping[str, str],
    metric: MetricName = MetricName.ACCURACY,
    names: Sequence[str] = (),
    rates: Mapping[str, str] | None = None,
    quoted: Sequence[Row] = (),
) -> Table:
    """A row for every rule that has run, the best of a column in bold; quoted rows are not compared.

    ``names``: the requesters in this order; ``rates``: the rules' rates, in a column of their own.
    """
    names = names or scores.requesters
    ran = [variant for variant in rules if variant in scores.variants]
    columns = [[scores.spread(variant, name, metric) for variant in ran] for name in names]
    columns.append([scores.over_requesters(variant, metric) for variant in ran])
    cells = [_best_in_bold(column, metric.smaller_is_better) for column in columns]
    rows = [
        (rules[variant], *_rate(rates, variant), *of) for variant, of in zip(ran, zip(*cells, strict=True), strict=True)
    ]
    return [("rule", *(["rate"] if rates else []), *names, "mean"), *rows, *((*row, "") for row in quoted)]


def _rate(rates: Mapping[str, str] | None, variant: str) -> Row:
    return (rates[variant],) if rates else ()


def _best_in_bold(column: Sequence[Spread | None], smallest: bool) -> list[str]:
    """Among those over the most runs."""
    most = max((cell.count for cell in column if cell), default=0)
    best = (min if smallest else max)((cell.mean for cell in column if cell and cell.count == most), default=None)
    return [f"**{cell}**" if cell and cell.mean == best else shown(cell) for cell in column]


def less_table(scores: Scores, rules: Mapping[str, str], metric: MetricName, baseline: str = LOCAL) -> Table:
    """A row for every rule that has run, a column per requester, and for how many the rule is better and worse."""
    rows = []
    for variant, title in rules.items():
        found = scores.less(variant, baseline, metric) if variant != baseline else {}
        if found:
            cells = (signed(found[name]) if name in found else "none" for name in scores.requesters)
            rows.append((title, *cells, tally(found, metric)))
    best = "smaller is better" if metric.smaller_is_better else "larger is better"
    return [(f"{words_of(metric)} ({best})", *scores.requesters, "better / same / worse"), *rows]


# --- what the estimate of risk behind Mallows averaging misses --------------------------------------------------------
#
# One round is drawn: the requester's update g_0 = e_0, with E||e_0||^2 = v_0 = 1 spread over ``parameters`` directions,
# and those of ``sites`` others, g_i = d_i + e_i with the same noise and a bias of squared length ``bias`` (in units of
# v_0) that points anywhere. The rule knows v_0 and sees the distances, of which the noise is part. Its weights follow
# from the same noise that they are to average out, which the criterion does not count: with p parameters K_ij / v_0 has
# a standard deviation of about sqrt(2 / p), however often the same examples are measured.
#
# From the round to the loss: let the loss be quadratic with curvature H at the optimum, and weights stay. The rounds
# end where the weighted gradient is zero, so the model is H^-1 e away from the optimum, e the weighted gradient's error
# there, and the excess loss is e'H^-1 e / 2. Whitened features make H nearly c I; with n examples of a model that is
# right, v_0 = c p / n. So the excess loss is ||e||^2 / v_0 times p / 2n.

_TERMS: Final = ListTerms(least=3, colluders=0, largest_share=Fraction(3, 5))
"""Those of the sites' default policy."""
_GRID: Final = 1024


@dataclass(frozen=True)
class SquaredErrors:
    """Mean squared errors of one round's step, in units of v_0: by the rule, training alone, plain averaging."""

    mallows: float
    alone: float
    averaged: float

    @property
    def missed(self) -> float:
        """The rule's less that of the better of both; below 0 where the rule is better."""
        return self.mallows - min(self.alone, self.averaged)


def squared_errors(
    parameters: int, bias: float, *, bias_factor: float = 2.0, sites: int = 3, draws: int = 400, seed: int = 0
) -> SquaredErrors:
    """The means over ``draws`` rounds; ``bias`` is every site's squared bias over v_0, ``bias_factor`` the rule's b."""
    random = np.random.default_rng([seed, parameters, sites])
    found = np.array([_one_round(random, parameters, bias, bias_factor, sites) for _ in range(draws)])
    mallows, alone, averaged = found.mean(axis=0)
    return SquaredErrors(float(mallows), float(alone), float(averaged))


def _one_round(
    random: np.random.Generator, parameters: int, bias: float, bias_factor: float, sites: int
) -> tuple[float, float, float]:
    own = _noise(random, 1, parameters)[0]
    towards = random.normal(size=(sites, parameters))
    biases = np.sqrt(bias) * towards / np.linalg.norm(towards, axis=1, keepdims=True)
    apart = biases + _noise(random, sites, parameters) - own
    risk = plug_in_risk(apart @ apart.T, np.ones(sites), bias_factor)
    weights = best_choice(risk, _TERMS, _GRID).weights()
    averaged = own + apart.sum(axis=0) / (sites + 1)
    return _squared(own + weights @ apart), _squared(own), _squared(averaged)


def _noise(random: np.random.Generator, sites: int, parameters: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = random.normal(size=(sites, parameters)) / np.sqrt(parameters)
    return found


def _squared(values: NDArray[np.float64]) -> float:
    return float(np.sum(np.square(values)))


MNIST_LAST: Final = WORDS["published_mnist"]
"""Last round, WE / FedAvg / Local."""
TITANIC: Final = WORDS["published_titanic"]
"""Round 30, users 0 to 3: FedAvg (its code adds row sums), WE, Local; means over test batches, not pooled."""
TITANIC_RATES: Final = {"FedAvg, row sums": 0.07, "WE": 3.0, "Local": 3.0}
FLAMBY: Final = WORDS["published_flamby"]
"""Accuracy."""
_METHODS: Final = {"weight_erosion": "weight_erosion", "fedavg": "federated", "local": "local"}


def mnist_curve(folder: Path | None, setting: str, variant: str, key: str = "acc") -> Curve | None:
    """A published curve of one setting ("b_10"), None where the file is not there or holds none."""
    targets = _read(folder, "mnist_weight_erosion_curves.json")
    letter, sites = setting.split("_")
    of = {} if targets is None else targets["settings"].get(f"{letter.upper()}_{sites}", {})
    values = of.get(_METHODS[variant], {}).get(key)
    return None if values is None else Curve(variant, tuple(values), (0.0,) * len(values))


def titanic_curve(folder: Path | None, split: str, user: int, key: str) -> Curve | None:
    """A published curve (``weight_erosion``, ``global_fedavg``, ``alpha_agent_0`` ...) without round 0."""
    targets = _read(folder, "titanic_weight_erosion_curves.json")
    values = None if targets is None else targets[split.upper()][f"user_{user}"].get(key)
    return None if values is None else Curve(key, tuple(values[1:]), (0.0,) * (len(values) - 1))


def _read(folder: Path | None, name: str) -> dict[str, Any] | None:
    """None where the published curves are not on this machine: they are compared with, never shipped."""
    try:
        path = data_folder(folder) / "targets" / name
    except ConfigurationError:
        return None
    if not path.is_file():
        return None
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read
