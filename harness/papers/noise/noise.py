"""The page on noise: what accuracy is left under which epsilon, and what guessing who was trained on comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.learning.private.drawn_rows import drawing_probability
from client_agent.scoring.score import MetricName
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of
from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.papers.attacked.inference_runs import Inferred, recorded_in, run_missing_of
from harness.papers.making import Making
from harness.papers.page import Page
from harness.papers.tables.by_requester import over_requesters
from harness.simulation.case import Case, read_case
from harness.simulation.case_run import CaseOptions, run_case
from harness.simulation.drawing.charts import bars_chart
from harness.simulation.drawing.spread import Spread
from harness.simulation.runs import RunLine
from harness.simulation.store import Results

EPSILONS: Final = ("none", "clipped", "8", "4", "2", "1")
COUNTED: Final = EPSILONS[2:]
RULES: Final = {"fedavg": "FedAvg", "weight_erosion": "Weight Erosion"}
LINES: Final = Path("noise_membership") / "inferred.jsonl"
MEMBERSHIP: Final = Inferred(
    "noise_membership", "digits, 10 sites of about 29 records", ("fedavg", "fedavg_8", "fedavg_1"), (0, 1, 2, 3, 4)
)
_INTRODUCTION: Final = (
    "Every site clips each record's gradient and adds exact discrete Gaussian noise ([protocol.md](../protocol.md), "
    "section 19); what can be told about any one of its records, by both servers, the requester and all other sites "
    "together, is then bounded by epsilon ([in plain words](../privacy_budget.md)). This page is about its price. "
    "Noise is added by every site by itself, so that nobody has to be trusted with it; the sum of n sites has sqrt(n) "
    "times one site's. Accuracy is on the requesters' own test parts after the last round, mean ± standard error over "
    "seeds. Clip norms of records were fixed before any run; rates were chosen on other seeds by validation examples, "
    "for every epsilon by itself, which is not in epsilon."
)
_READ: Final = (
    "**Read with care.** *None* neither clips nor adds noise; *clipped* clips every record's gradient and adds the "
    "least noise that a study may have, which promises nothing: what lies between those two is clipping, what lies "
    "between *clipped* and a number is noise. Clipped sums are divided by the batch size, however many records a site "
    "has: Switzerland's 31 of 64 then count half. Epsilon is for one record of the site that spends most, over this "
    "one study; a second study adds to it. Heart disease's features were standardised per hospital, which no epsilon "
    "here covers and a study with a schema may not do; rates chosen by trying are not covered either. Both models are "
    "small for their records; noise grows with the square root of the number of parameters, and below is a study in "
    "which it takes nearly everything. Training alone is better in both studies, without noise too: what sharing costs "
    "there is not the noise. FedAvg on MNIST with neither clipping nor noise has the rate that one tuning seed chose, "
    "and differs most between seeds."
)
_MEMBERS: Final = (
    "Ten sites with few records each, and a linear model with more parameters than a site has records. The attacks "
    "are those of [what can they still infer?](privacy.md): the area under the ROC curve (.5 is chance) and the share "
    "of members found when one of a hundred others is taken for one. Epsilon allows at most e^epsilon times the share "
    "of others that are taken for members, plus delta: at 8 that is no bound worth the name, at 1 it is one. For so "
    "few records the price is nearly the whole model (guessing is right for .1 of the digits)."
)

_SITES: Final = (
    "Earlier versions could also hide all that a site shares: each server added discrete Gaussian noise to its half of "
    "every sum. It was removed, because it left no model of use anywhere. At epsilon 8 the accuracy of FedAvg on the "
    "requesters' test parts was .635 in heart disease (four hospitals; without noise .705; always guessing the most "
    "frequent class .735), .179 on the digits (ten sites; .932; .600), and on MNIST .168 with 10 sites, .217 with 20, "
    ".386 with 50 and .604 with 100 (without noise .80 to .84; guessing .580). At 64, which promises next to nothing, "
    "it was .705, .667, .351, .590, .773 and .807. These are means over requesters and seeds of 20 rounds, 30 on "
    "MNIST, at delta 0.001, 0.00001 on MNIST; the standard errors were at most .067. A site that wants a bound takes "
    "noise on its own records, as above."
)


@dataclass(frozen=True)
class NoiseCase:
    """A case of the page; ``samples`` are the training examples of its smallest and largest site."""

    case: str
    title: str
    samples: tuple[tuple[str, int], ...]
    delta: float

    def read(self, studies: Path) -> Case:
        """Raises: ConfigurationError"""
        return read_case(studies / f"{self.case}.toml")


CASES: Final = (
    NoiseCase(
        "noise_heart",
        "Heart disease: four hospitals, 28 parameters, 20 rounds",
        (("Switzerland", 31), ("VA Long Beach", 86), ("Hungary", 173), ("Cleveland", 200)),
        1e-3,
    ),
    NoiseCase(
        "noise_mnist",
        "MNIST: ten sites with other digits each, 7,850 parameters, 30 rounds",
        (("the smallest site", 5605), ("the largest site", 6423)),
        1e-5,
    ),
)


@dataclass(frozen=True)
class NoisePage:
    """Runs, guesses and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every run that is not there yet. Raises: ConfigurationError"""
        for case, seeds in (*((one.case, None) for one in CASES), (MEMBERSHIP.case, MEMBERSHIP.seeds)):
            read = read_case(self.studies / f"{case}.toml")
            making.tell(f"moiety simulate harness/studies/{case}.toml")
            making.get_data(read.table.data)
            run_case(read, CaseOptions(making.runs / case, making.data, seeds, None, jobs=making.jobs))
        run_missing_of((MEMBERSHIP,), self.studies, making.runs / LINES, making.data, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        cases = (*(one.case for one in CASES), MEMBERSHIP.case)
        found = {case: Results(runs / case).lines() for case in cases}
        write(page, found, recorded_in(runs / LINES), self.studies)
        page.made_by(["moiety results --only differential_privacy"], [line for one in found.values() for line in one])
        page.write()
        return page.path


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], lines: Sequence[InferenceLine], studies: Path) -> None:
    """Everything; what was not run is named."""
    page.text(_INTRODUCTION)
    for one in CASES:
        page.heading(one.title)
        _utility(page, one, runs.get(one.case, ()), studies)
    page.text(_READ)
    page.heading("Was this record trained on?")
    page.text(_MEMBERS)
    _membership(page, runs.get(MEMBERSHIP.case, ()), lines)
    page.heading("A whole site hidden: noise of the servers")
    page.text(_SITES)


def variant_of(rule: str, epsilon: str) -> str:
    """The case's variant of a rule under an epsilon."""
    return rule if epsilon == "none" else f"{rule}_{epsilon}"


def _utility(page: Page, one: NoiseCase, lines: Sequence[RunLine], studies: Path) -> None:
    if not lines:
        page.text("**Not run yet.**")
        return
    case = one.read(studies)
    shown = (MetricName.ACCURACY, MetricName.LOG_LOSS)
    local = [_cell(over_requesters(lines, "local", metric)) for metric in shown]
    heads = [f"{name}: {metric.value.replace('_', '-')}" for name in RULES.values() for metric in shown]
    rows = [
        (
            epsilon,
            _noise(case, epsilon),
            *(_cell(over_requesters(lines, variant_of(rule, epsilon), metric)) for rule in RULES for metric in shown),
        )
        for epsilon in EPSILONS
    ]
    page.table(("epsilon", "noise multiplier", *heads), rows)
    page.text(f"Training alone, which shares nothing and needs no noise: accuracy {local[0]}, log-loss {local[1]}.")
    accuracies = [
        (name, [over_requesters(lines, variant_of(rule, epsilon)) for epsilon in EPSILONS])
        for rule, name in RULES.items()
    ]
    whole = [(name, [spread for spread in spreads if spread is not None]) for name, spreads in accuracies]
    if all(len(spreads) == len(EPSILONS) for _, spreads in whole):
        groups = [epsilon if epsilon not in COUNTED else f"epsilon {epsilon}" for epsilon in EPSILONS]
        chart = bars_chart(groups, whole, "test accuracy")
        page.figure(one.case.removeprefix("noise_"), chart, f"{one.title}: accuracy under noise.")
    page.text(f"What each site spends of epsilon, at delta {one.delta:g} ({accountant()}):")
    page.table(
        ("site", "records", *(f"at {epsilon}" for epsilon in COUNTED)),
        [
            (site, str(count), *(spent_of(case, one, epsilon, count) for epsilon in COUNTED))
            for site, count in one.samples
        ],
    )


def _noise(case: Case, epsilon: str) -> str:
    privacy = case.variant(variant_of("fedavg", epsilon)).study.privacy
    return "no noise, no clipping" if privacy is None else f"{privacy.noise_multiplier:g}"


def spent_of(case: Case, one: NoiseCase, epsilon: str, examples: int) -> str:
    """What all rounds of the variant spend at a site with so many records."""
    study = case.variant(variant_of("fedavg", epsilon)).study
    if study.privacy is None:
        return ""
    drawn = drawing_probability(examples, study.training.batch_size)
    return f"{epsilon_of([Steps(drawn, study.privacy.noise_multiplier, study.rounds)], one.delta):.2f}"


def _membership(page: Page, runs: Sequence[RunLine], lines: Sequence[InferenceLine]) -> None:
    rows = []
    for epsilon, variant in zip(("none", "8", "1"), MEMBERSHIP.variants, strict=True):
        found = [line for line in lines if line.variant == variant]
        if not found:
            page.text("**Not run yet.**")
            return
        attacks = (
            [line.by_loss for line in found],
            [line.by_reference for line in found],
            [line.by_averages for line in found if line.by_averages is not None],
        )
        cells = [
            f"{Spread.of(told.auc for told in one)}, {Spread.of(told.at_one_percent for told in one)}"
            for one in attacks
        ]
        rows.append((epsilon, _cell(over_requesters(runs, variant)), *cells))
    page.table(("epsilon", "accuracy", "loss", "reference", "averages"), rows)


def _told(found: Sequence[Told]) -> str:
    return f"{Spread.of(told.auc for told in found)}, {Spread.of(told.at_one_percent for told in found)}"


def _cell(spread: Spread | None) -> str:
    return "not run" if spread is None else str(spread)
