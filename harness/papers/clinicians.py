"""One page that a clinician can read: whether it pays to join, what each rule does, discloses and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.scoring.score import words_of
from harness.papers.does_it_pay import STUDIES, Asked
from harness.papers.page import Page
from harness.papers.tables.against import tally
from harness.papers.tables.better_of_both import Beside, beside_better, beside_rule, with_rules_alone
from harness.papers.tables.by_requester import gains
from harness.simulate.run_line import RunLine

LOCAL: Final = "local"
REAL: Final = "pays_heart_disease"
_NUMBERS: Final = ("none", "one", "two", "three", "four", "five")
Found = Sequence[tuple[Asked, Sequence[RunLine]]]


@dataclass(frozen=True)
class Said:
    """One rule in plain words. ``requester_learns`` is about single hospitals, beside the common model."""

    variant: str
    title: str
    does: str
    use_when: str
    requester_learns: str
    costs: str


RULES: Final = (
    Said(
        "local",
        "Training alone",
        "Nothing is shared; the model knows your patients only.",
        "you have many patients, or nobody's patients are like yours",
        "nothing",
        "no network at all",
    ),
    Said(
        "fedavg",
        "FedAvg",
        "Every hospital counts the same; one model for all.",
        "all hospitals treat much the same patients, and some have few",
        "nothing",
        "about 8 bytes per model parameter up and down per round",
    ),
    Said(
        "fedavg_by_samples",
        "FedAvg by patients",
        "A hospital counts by its number of patients, which nobody else learns.",
        "as FedAvg, and sizes differ a lot",
        "nothing",
        "as FedAvg",
    ),
    Said(
        "wfedavg",
        "WFedAvg",
        "A hospital with a balanced mix of diagnoses counts more; nobody else learns its mix.",
        "some hospitals see almost one diagnosis only",
        "nothing; everybody learns how many patients of each diagnosis all hospitals have together",
        "as FedAvg, and one more round for the counts",
    ),
    Said(
        "fedadam",
        "FedAdam, FedYogi, FedAdagrad",
        "FedAvg with an adaptive step; still one model for all.",
        "FedAvg is slow to settle, and you can spare validation data to tune the step",
        "nothing",
        "as FedAvg; every hospital keeps three times the model's memory",
    ),
    Said(
        "shrinkage",
        "Shrinkage",
        "Your hospital and the average of the others are mixed by how noisy your own update is.",
        "you have few patients, and do not want to learn anything about single hospitals",
        "nothing",
        "as FedAvg",
    ),
    Said(
        "mallows",
        "Mallows averaging",
        "Weights that minimise an estimate of your model's error, from distances in rounds of measuring.",
        "you do not know whether joining pays: it weighs hospitals by what they are worth to you, down to nothing",
        "how far each hospital's update lies from yours, and from each other",
        "as Weight Erosion, in every tenth round",
    ),
    Said(
        "fedavg_finished",
        "FedAvg, then a local finish",
        "After the last round your model moves on your own patients, as far as these tell that it should.",
        "as FedAvg, and your patients differ from the others'",
        "nothing",
        "as FedAvg, and a minute of your own computer",
    ),
    Said(
        "mallows_finished",
        "Mallows averaging, then a local finish",
        "The same after Mallows averaging.",
        "as Mallows averaging, and you have hundreds of patients: with few it can undo what joining gave",
        "as Mallows averaging",
        "as Mallows averaging, and a minute of your own computer",
    ),
    Said(
        "multi_krum",
        "multi-Krum",
        "Leaves out, in each round, the hospitals whose updates lie furthest from the others'.",
        "you fear that a hospital sends broken or forged updates",
        "how far any two hospitals' updates lie apart",
        "as FedAvg; between the servers, work that grows with the square of the number of hospitals",
    ),
    Said(
        "influence",
        "Influence",
        "Hospitals whose updates lower the error on your validation patients gain weight.",
        "you can set validation patients aside, and want weights to follow what helps you",
        "how well each hospital's update points along your own validation gradient",
        "as Weight Erosion",
    ),
    Said(
        "weight_erosion",
        "Weight Erosion",
        "Hospitals whose updates pull away from yours lose weight, round by round: a model for your patients.",
        "you have too few patients to train alone, and some, but not all, hospitals are like yours",
        "how far each hospital's update lies from yours",
        "as FedAvg; between the servers about 1 MB per hospital and round, whatever the model's size",
    ),
    Said(
        "fedavg_fine_tuned",
        "Fine-tuning",
        "Train together, then go on alone for a few passes over your own patients.",
        "after any of the rules above; it is cheap to try",
        "nothing more than the rule before it",
        "a few minutes of your own computer",
    ),
)


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """The answer, the rules in words, then what they did for the hospital that asked in the studies that have run."""
    ran = [study for study in STUDIES if study.few and runs.get(study.case)]
    found = [(study, with_rules_alone(tuple(runs[study.case]))) for study in ran]
    page.text(_at_real_hospitals(found))
    page.text(
        "You ask for a model for **your** patients; other hospitals help. Nobody else sees a hospital's data, and no "
        "single server sees its update; the requester can work out a small model's update over several rounds "
        "([what sums give away](sums.md)). Everybody who takes part sees the common model after each round. What is "
        "left to choose is the rule by which the updates are put together."
    )
    page.heading("Does it pay to join?")
    page.text("\n".join(_answers(found)) or "**Not run yet.**")
    page.heading("The rules")
    page.table(
        ("rule", "what it does", "use it when", "what you learn about a single hospital", "what it costs"),
        [(f"**{one.title}**", one.does, one.use_when, one.requester_learns, one.costs) for one in RULES],
        numbers=False,
    )
    page.heading("What it did for the hospital that asked")
    page.text(
        "On its own test patients, against training alone with the same patients: for how many requesters a rule was "
        "clearly better (more than two standard errors), not clearly different, clearly worse. The *loss* asks how "
        "sure the model was as well as whether it was right, and is the one to look at if you use probabilities; "
        "*accuracy* counts right answers, *AUROC* and *C-index* ask whether who is worse off is ranked higher, *RMSE* "
        "by how much a predicted value is off. These are small public studies, not your data; "
        "[does it pay to join](does_it_pay.md) has the figures behind them. The pages on "
        "[heart disease](heart_disease.md) and [Titanic](titanic.md) have other runs, under settings that they state. "
        "They have rules that have no figures here, and other counts for the same hospitals."
    )
    _by_study(page, found)
    page.heading("All of it together")
    page.text(
        "Requesters of all studies in which a rule has run, by loss. A rule with few requesters was tried in few "
        "studies, so rows of different length do not compare. And the studies are not equal: only heart disease comes "
        "from hospitals that differ as hospitals do. In the others we divided one data set, which makes sharing look "
        "better than it may be for you: their parts are alike but for what we divided by."
    )
    page.table(("rule", "requesters", "studies", "clearly better", "not clear", "clearly worse"), _together(found))
    page.heading("Where a rule loses")
    sentences = [sentence for study, lines in found for sentence in _losses(study, lines)]
    page.text("\n".join(sentences) or "**Not run yet.**")


def _by_study(page: Page, found: Found) -> None:
    for study, lines in found:
        page.text(f"**{study.title[0].upper()}{study.title[1:]}**: {study.about}")
        page.table(("rule: better / same / worse", "loss", *map(words_of, study.beside)), _tallies(study, lines))
    there = [study for study, _ in found]
    missing = [study.title for study in STUDIES if study.few and study not in there]
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")


def _at_real_hospitals(found: Found) -> str:
    """FedAvg first, then the rule that chooses, where hospitals differ as hospitals do."""
    real = [lines for study, lines in found if study.case == REAL]
    fedavg, mallows = ([one for lines in real for one in beside_rule(lines, of)] for of in ("fedavg", "mallows"))
    if not fedavg:
        return "**Not run yet:** real hospitals."
    said = (
        f"At the {_number(len(fedavg))} real hospitals that we tried, FedAvg helped {_number(_better(fedavg))} and "
        f"harmed {_number(_worse(fedavg))}, beside training alone on their own patients."
    )
    if mallows:
        said += f" Mallows averaging helped {_number(_better(mallows))} and harmed {_number(_worse(mallows))}."
    return f"{said} All other requesters on this page are parts of one data set that we divided, not hospitals."


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def _answers(found: Found) -> list[str]:
    """What joining did for those who asked, by FedAvg and by the rule that chooses for them, and beside hindsight."""
    sentences = []
    for variant, title in (("fedavg", "FedAvg"), ("mallows", "Mallows averaging")):
        alone = [one for _, lines in found for one in beside_rule(lines, variant)]
        if alone:
            sentences.append(
                f"- By {title}, joining was clearly better than training alone for {_better(alone)} of {len(alone)} "
                f"requesters, hospitals and parts of data sets together, clearly worse for {_worse(alone)}."
            )
    best = [one for _, lines in found for one in beside_better(lines, "mallows")]
    if best:
        most = max(0.0, *(one.difference.mean for one in best))
        sentences.append(
            "- Nobody knows beforehand which of the two, training alone or FedAvg, is the better one. Beside whichever "
            f"turned out to be, Mallows averaging was clearly better for {_better(best)} of {len(best)}, clearly worse "
            f"for {_worse(best)} (its loss is up to {most:.3f} larger), and not clearly different for the others."
        )
    return sentences


def _better(found: Sequence[Beside]) -> int:
    return sum(one.better for one in found)


def _worse(found: Sequence[Beside]) -> int:
    return sum(one.worse for one in found)


def _counts(found: Sequence[Beside]) -> str:
    return f"{_better(found)} / {len(found) - _better(found) - _worse(found)} / {_worse(found)}"


def _shared() -> tuple[Said, ...]:
    return tuple(one for one in RULES if one.variant != LOCAL)


def _tallies(study: Asked, lines: Sequence[RunLine]) -> list[tuple[str, ...]]:
    """A row for every rule that has run."""
    return [
        (
            f"**{one.title}**",
            _counts(beside),
            *(tally(gains(lines, one.variant, LOCAL, metric)) for metric in study.beside),
        )
        for one in _shared()
        if (beside := beside_rule(lines, one.variant))
    ]


def _together(found: Found) -> list[tuple[str, ...]]:
    """A row for every rule that has run: for how many hospitals it paid, by loss."""
    rows = []
    for one in _shared():
        by_study = [beside_rule(lines, one.variant) for _, lines in found]
        counted = [beside for of_study in by_study for beside in of_study]
        if counted:
            better, worse = _better(counted), _worse(counted)
            same, studies = len(counted) - better - worse, sum(map(bool, by_study))
            rows.append((f"**{one.title}**", *map(str, (len(counted), studies, better, same, worse))))
    return rows


def _losses(study: Asked, lines: Sequence[RunLine]) -> list[str]:
    """A sentence for every rule that was clearly worse than training alone somewhere, by loss."""
    sentences = []
    for one in _shared():
        lost = [beside for beside in beside_rule(lines, one.variant) if beside.worse]
        if lost:
            said = ", ".join(f"{beside.requester} ({beside.difference.mean:+.3f})" for beside in lost)
            sentences.append(f"- {study.title}: {one.title} has a larger loss than training alone for {said}.")
    return sentences or [f"- {study.title}: no rule was clearly worse than training alone."]
