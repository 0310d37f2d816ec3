"""The page that answers what every hospital asks: whether it pays to join, and by which rule, without choosing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from client_agent.scoring.score import MetricName, words_of
from harness.papers.charts import Dot, RatioPanel, ratios_chart
from harness.papers.page import Page
from harness.papers.tables.against import signed
from harness.papers.tables.better_of_both import (
    FEDAVG,
    FINISHED,
    LOCAL,
    Beside,
    beside_better,
    beside_rule,
    better_losses,
    losses,
    mean_beside_better,
    with_rules_alone,
)
from harness.papers.tables.by_requester import over_requesters, requesters
from harness.papers.tables.missed import missed_table
from harness.simulate.charts import Spread, number, of_variant
from harness.simulate.run_line import RunLine

Lines = tuple[RunLine, ...]
_CLASSES: Final = (MetricName.ACCURACY, MetricName.AUROC)


@dataclass(frozen=True)
class Asked:
    """A study, and what stands beside its loss. ``few``: linear models over few examples, which the goal is about."""

    case: str
    title: str
    about: str
    beside: tuple[MetricName, ...] = _CLASSES
    few: bool = True

    @property
    def seeds(self) -> int:
        """How many were planned."""
        return 20 if self.few else 3


STUDIES: Final = (
    Asked("pays_heart_disease", "heart disease", "four real hospitals, 46 to 303 patients"),
    Asked("pays_titanic_strict", "Titanic by age", "four age groups, 248 to 476 passengers"),
    Asked("pays_titanic_some", "Titanic, two alike", "four groups, two of them drawn from the same ages"),
    Asked("pays_breast_cancer", "breast cancer", "one data set that we cut into five by tumour size, 569 tumours"),
    Asked("pays_breast_cancer_fifth", "breast cancer, a fifth", "the same with a fifth of every training part"),
    Asked(
        "pays_regression",
        "diabetes",
        "one data set that we cut into five by age, 442 patients, squared loss",
        (MetricName.RMSE,),
    ),
    Asked(
        "pays_survival",
        "survival",
        "one data set that we cut into five by stage, 686 women, Cox",
        (MetricName.C_INDEX,),
    ),
    Asked("pays_har", "HAR, linear", "thirty people, five of them ask; more parameters than examples", few=False),
    *(
        Asked(
            f"pays_mnist_{letter}",
            f"MNIST {letter.upper()}",
            f"ten sites of 200 images, distribution {letter.upper()}; a network of 20,666 parameters",
            (MetricName.ACCURACY,),
            few=False,
        )
        for letter in "abf"
    ),
)
RULES: Final = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_by_samples": "FedAvg by samples",
    "weight_erosion": "Weight Erosion",
    "shrinkage": "Shrinkage",
    "mallows": "Mallows averaging",
}
SUMS: Final = {"mallows_sums": "Mallows averaging, sums"}
RIVALS: Final = {"ditto": "Ditto", "pfedme": "pFedMe"}
WITH_FINISH: Final = {f"{name}{FINISHED}": f"{title} + finish" for name, title in RULES.items()}
TITLES: Final = RULES | SUMS | WITH_FINISH | RIVALS
DRAWN: Final = ("weight_erosion", "shrinkage", "fedavg_finished", "mallows", "mallows_sums", "mallows_finished")
GOAL_OF: Final = ("mallows", "mallows_sums", "fedavg_finished")
HOW: Final = (
    "Everything was fixed before the figures of these runs were looked at, and is the same for every rule: linear "
    "models on features whitened by the pooled moments, full-batch gradients, 40 rounds; for MNIST a small network, "
    "local SGD and 20 rounds. The server's rate, and the penalties of Weight Erosion, Ditto and pFedMe, were chosen "
    "for every rule on validation examples with a seed of their own (MNIST: not chosen). Lists obey the sites' default "
    "policy but for isolation, which with full batches would hold back lists that move; FedAvg by samples, Weight "
    "Erosion, Ditto and pFedMe, which know of no policy, run without one. The *finish* is the requester's alone, after "
    "the last round; its pull is chosen by leaving one example out, in survival, HAR and MNIST by a fifth held out of "
    "the rounds. It was tried after Local, FedAvg and Mallows averaging. *Mallows averaging, sums* averages distances "
    "and noise over rounds each for itself; it was added after the figures of the first three studies had been looked "
    "at, because of them, and chosen on validation examples of other seeds: on these patients it is no fresh test. One "
    "test curve of heart disease, under other settings, had been seen while the runs were timed. In survival, rates "
    "were chosen by C-index, which does not ask how large a hazard is: training alone has the largest rate there, and "
    "a large loss."
)
CAVEATS: Final = (
    "- *The better of both* is the better of Local and FedAvg for each requester, chosen by the test losses that are "
    "then compared. Nobody could choose so, and it favours that benchmark: where the two are equal in truth, the "
    "better one of the two looks better than either is.\n"
    "- A standard error is over seeds, and a seed is another split of the same patients. It says how sure the figure "
    "is for these patients, not for new ones, and it is too small for that, since test parts overlap.\n"
    "- *Clearly* is two standard errors. Among 30 requesters without any difference one or two would be clear, "
    "and with five seeds only three or four.\n"
    "- Only heart disease has sites that differ as hospitals do. In the others one data set was divided by us."
)


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """The answer, the figure, one table over all studies, and one for each."""
    found = tuple((study, with_rules_alone(tuple(runs[study.case]))) for study in STUDIES if runs.get(study.case))
    if not found:
        page.text("**Not run yet.**")
        return
    page.text(HOW)
    page.text(_not_done(found))
    page.heading("Was the goal reached?")
    page.text("\n".join(line for rule in GOAL_OF for line in _goal(found, rule)))
    page.figure("ratios", _chart(found), _CAPTION)
    for few, heading in ((True, "Few examples, linear models"), (False, "More parameters than examples, networks")):
        chosen = [one for one in found if one[0].few is few]
        if chosen:
            page.heading(heading)
            _over_studies(page, chosen)
    page.heading("What these figures are")
    page.text(CAVEATS)
    page.heading("Who falls short")
    page.text("\n".join(_shortfalls(found)))
    _sums_beside_ratios(page, found)
    page.heading("What the estimate of risk misses")
    missed_table(page)
    for study, lines in found:
        page.heading(f"{study.title[0].upper()}{study.title[1:]}: {study.about}")
        _one_study(page, study, lines)


def _goal(found: Sequence[tuple[Asked, Lines]], rule: str) -> list[str]:
    """A rule beside what was asked of Mallows averaging before it was studied."""
    alone = [one for _, lines in found for one in beside_rule(lines, rule)]
    better = [one for _, lines in found for one in beside_better(lines, rule)]
    few = [one for study, lines in found if study.few for one in beside_better(lines, rule)]
    if not better:
        return []
    below_alone, below = sum(one.worse for one in alone), sum(one.worse for one in better)
    above = sum(one.better for one in few)
    asked = (
        (f"clearly below training alone for {below_alone} of {len(alone)} requesters (goal: none)", below_alone == 0),
        (f"clearly below the better of both for {below} of {len(better)} (goal: none)", below == 0),
        (f"clearly above it for {above} of {len(few)} with few examples (goal: half)", 2 * above >= len(few) > 0),
    )
    title = f"{TITLES[rule]} ({_seed_range(found, rule)} seeds)"
    return [f"- {title} is {text}: {'reached' if reached else '**not reached**'}." for text, reached in asked]


def _not_done(found: Sequence[tuple[Asked, Lines]]) -> str:
    """Studies and rules that have not run, or not everywhere, and those with fewer seeds than the case asks for."""
    ran = {study.case for study, _ in found}
    missing = [study.title for study in STUDIES if study.case not in ran]
    rules = [title for rule, title in TITLES.items() if not any(of_variant(lines, rule) for _, lines in found)]
    fewer = [
        f"{study.title}, {title} ({seeds} of {study.seeds})"
        for study, lines in found
        for rule, title in TITLES.items()
        if 0 < (seeds := _seeds(lines, rule)) < study.seeds
    ]
    partly = [
        f"{title} ({studies} of {len(found)} studies)"
        for rule, title in TITLES.items()
        if 0 < (studies := sum(bool(_seeds(lines, rule)) for _, lines in found)) < len(found)
    ]
    parts = (("studies", missing), ("rules", rules), ("rules in some studies only", partly), ("seeds", fewer))
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return f"**Not done:** {said}." if said else "Everything that was planned has run."


def _seeds(lines: Lines, rule: str) -> int:
    """With how many the rule has run."""
    return len({line.seed for line in of_variant(lines, rule)})


_CAPTION: Final = (
    "A dot is a requester. To the right FedAvg loses to training alone, to the left it wins; below 1 the rule beats "
    "training alone. The bent line is the better of both: a rule that needs no choosing has no dot above it. Mean "
    "test losses over seeds; coloured dots are more than two standard errors from the line; squares are networks, and "
    "models with more parameters than examples."
)


def _chart(found: Sequence[tuple[Asked, Lines]]) -> str:
    return ratios_chart([RatioPanel(TITLES[rule], _dots(found, rule)) for rule in DRAWN if _dots(found, rule)])


def _dots(found: Sequence[tuple[Asked, Lines]], rule: str) -> tuple[Dot, ...]:
    dots = []
    for study, lines in found:
        for beside in beside_better(lines, rule):
            of = [losses(lines, name, beside.requester) for name in (LOCAL, FEDAVG, rule)]
            seeds = sorted(set.intersection(*map(set, of)))  # the same for all three
            alone, averaged, own = (mean(found[seed] for seed in seeds) for found in of)
            dots.append(Dot(study.few, averaged / alone, own / alone, beside.better, beside.worse))
    return tuple(dots)


def _mean_loss(lines: Lines, rule: str, requester: str) -> float:
    return Spread.of(losses(lines, rule, requester).values()).mean


def _over_studies(page: Page, found: Sequence[tuple[Asked, Lines]]) -> None:
    """For how many requesters of all these studies a rule was clear of the better of both, and of training alone."""
    rows = []
    for rule, title in TITLES.items():
        better = [one for _, lines in found for one in beside_better(lines, rule)]
        alone = [one for _, lines in found for one in beside_rule(lines, rule)]
        if better:
            studies = sum(bool(of_variant(lines, rule)) for _, lines in found)
            shares = (_share(better, clearly=True), _share(better, clearly=False))
            own = ("", "") if rule == LOCAL else (_share(alone, clearly=True), _share(alone, clearly=False))
            rows.append((f"**{title}**", str(len(better)), str(studies), _seed_range(found, rule), *shares, *own))
    page.table(
        (
            "rule",
            "requesters",
            "studies",
            "seeds",
            "clearly above the better of both",
            "clearly below it",
            "clearly above Local",
            "clearly below Local",
        ),
        rows,
    )


def _seed_range(found: Sequence[tuple[Asked, Lines]], rule: str) -> str:
    """10 to 20: with fewer, less is clear."""
    counts = sorted(seeds for _, lines in found if (seeds := _seeds(lines, rule)))
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _share(found: Sequence[Beside], clearly: bool) -> str:
    """7 (23 %)"""
    count = sum(one.better if clearly else one.worse for one in found)
    return f"{count} ({100 * count / len(found):.0f} %)"


def _one_study(page: Page, study: Asked, lines: Lines) -> None:
    """A row per rule: its mean loss, how far from the better of both, for how many, and the metrics beside it."""
    rows = []
    for rule, title in TITLES.items():
        gap = mean_beside_better(lines, rule)
        if gap is not None:
            counts = (_counts(beside_better(lines, rule)), "" if rule == LOCAL else _counts(beside_rule(lines, rule)))
            metrics = (str(over_requesters(lines, rule, metric) or "not at every requester") for metric in study.beside)
            rows.append((title, str(_seeds(lines, rule)), _loss_over(lines, rule), signed(gap), *counts, *metrics))
    best = _best_loss(lines)
    rows.append(
        ("*better of both*", "", "none" if best is None else str(best), "", "", "", *("" for _ in study.beside))
    )
    page.table(
        (
            f"requesters: {len(requesters(lines))}",
            "seeds",
            "loss",
            "less the better of both",
            "above / same / below it",
            "above / same / below Local",
            *(f"{words_of(metric)}" for metric in study.beside),
        ),
        rows,
    )


def _loss_over(lines: Lines, rule: str) -> str:
    """The mean over requesters of their means over seeds."""
    means = [_mean_loss(lines, rule, name) for name in requesters(lines) if losses(lines, rule, name)]
    return number(sum(means) / len(means))


def _best_loss(lines: Lines) -> str | None:
    means = [Spread.of(found.values()).mean for name in requesters(lines) if (found := better_losses(lines, name))]
    return number(sum(means) / len(means)) if means else None


def _counts(found: Sequence[Beside]) -> str:
    above, below = sum(one.better for one in found), sum(one.worse for one in found)
    return f"{above} / {len(found) - above - below} / {below}"


def _sums_beside_ratios(page: Page, found: Sequence[tuple[Asked, Lines]]) -> None:
    """Both ways of averaging on the seeds that both have run: with more seeds more is clear."""
    same = []
    for study, lines in found:
        seeds = {line.seed for line in of_variant(lines, "mallows_sums")}
        if seeds:
            same.append((study, tuple(line for line in lines if line.seed in seeds)))
    apart = [(study, one) for study, lines in same for one in beside_rule(lines, "mallows_sums", "mallows")]
    if not apart:
        return
    below = [
        sum(one.worse for _, lines in same for one in beside_better(lines, rule))
        for rule in ("mallows", "mallows_sums")
    ]
    lost = ", ".join(
        f"{study.title}: {one.requester} ({one.difference.mean:+.3f})" for study, one in apart if one.worse
    )
    page.text(
        f"**Averaging sums beside averaging ratios**, on the same seeds: clearly better for "
        f"{sum(one.better for _, one in apart)} of {len(apart)} requesters, clearly worse for "
        f"{sum(one.worse for _, one in apart)} ({lost or 'nobody'}). Clearly below the better of both are {below[0]} "
        f"by ratios and {below[1]} by sums."
    )


def _shortfalls(found: Sequence[tuple[Asked, Lines]]) -> list[str]:
    """A sentence for every requester for whom Mallows averaging misses the goal, with and without a finish."""
    sentences = []
    for rule in ("mallows", f"mallows{FINISHED}"):
        for study, lines in found:
            for what, besides in (
                ("Local", beside_rule(lines, rule)),
                ("the better of both", beside_better(lines, rule)),
            ):
                below = [f"{one.requester} ({signed(one.difference)})" for one in besides if one.worse]
                if below:
                    sentences.append(f"- {study.title}: {TITLES[rule]} is clearly below {what} for {', '.join(below)}.")
    return sentences or ["- Mallows averaging is clearly below Local, or the better of both, for nobody."]
