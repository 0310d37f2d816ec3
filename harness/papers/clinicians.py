"""One page that a clinician can read: what each rule does for the hospital that asks, discloses and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.scoring.score import MetricName, words_of
from harness.papers.page import Page
from harness.papers.tables.against import tally
from harness.papers.tables.by_requester import gains, requesters
from harness.simulation.runs import RunLine

LOCAL: Final = "local"
_CLASSES: Final = (MetricName.ACCURACY, MetricName.LOG_LOSS, MetricName.AUROC)


@dataclass(frozen=True)
class Compared:
    """A study, and what its rules are compared by; ``decides`` is the one that counts in the sum over studies."""

    case: str
    title: str
    metrics: tuple[MetricName, ...]
    decides: MetricName


STUDIES: Final = (
    Compared("heart_disease", "heart disease, four hospitals", _CLASSES, MetricName.LOG_LOSS),
    Compared("titanic_age_strict", "passengers by age group", _CLASSES, MetricName.LOG_LOSS),
    Compared("titanic_age_some", "passengers, two alike groups", _CLASSES, MetricName.LOG_LOSS),
    Compared("survival", "survival, five hospitals", (MetricName.C_INDEX,), MetricName.C_INDEX),
    Compared("regression", "regression, five practices", (MetricName.RMSE,), MetricName.RMSE),
)


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
        "as Weight Erosion, without penalties to choose; in simulations only so far",
        "how far each hospital's update lies from yours, and from each other",
        "as Weight Erosion, in every tenth round",
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
    """The rules in words, then what they did for the hospital that asked in the studies that have run."""
    _say_what_there_is(page)
    page.heading("What it did for the hospital that asked")
    found = [(study, tuple(runs[study.case])) for study in STUDIES if runs.get(study.case)]
    page.text(
        "On its own test patients, against training alone with the same patients: for how many hospitals a rule was "
        "clearly better (more than two standard errors), not clearly different, clearly worse. *Accuracy* counts right "
        "answers. *Log-loss* also asks how sure the model was, and is the one to look at if you use probabilities. "
        "*AUROC* and *C-index* ask whether who is worse off is ranked higher, *RMSE* by how much a predicted value is "
        "off. These are small public studies, not your data."
    )
    for study, lines in found:
        page.text(f"**{study.title[0].upper()}{study.title[1:]}**")
        page.table(
            ("rule: better / same / worse", *map(words_of, study.metrics)),
            [
                (f"**{one.title}**", *(tally(of) for of in by_metric))
                for one in _shared()
                if any(by_metric := [gains(lines, one.variant, LOCAL, metric) for metric in study.metrics])
            ],
        )
    missing = [study.title for study in STUDIES if not runs.get(study.case)]
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")
    page.heading("All of it together")
    page.text(
        "Hospitals of all studies in which a rule has run, by log-loss, C-index or RMSE. A rule with few hospitals was "
        "tried in few studies, so rows of different length do not compare. And the studies are not equal: only heart "
        "disease comes from hospitals that differ as hospitals do; in the others one data set was divided by us, which "
        "makes sharing look better than it may be for you."
    )
    page.table(("rule", "hospitals", "studies", "clearly better", "not clear", "clearly worse"), _together(found))
    page.heading("Where a rule loses")
    sentences = [sentence for study, lines in found for sentence in _losses(study, lines)]
    page.text("\n".join(sentences) or "**Not run yet.**")


def _say_what_there_is(page: Page) -> None:
    page.text(
        "You ask for a model for **your** patients; other hospitals help. Nobody, not even the two servers, sees any "
        "hospital's data or update. Everybody who takes part sees the common model after each round. What is left to "
        "choose is the rule by which the updates are put together."
    )
    page.heading("The rules")
    page.table(
        ("rule", "what it does", "use it when", "what you learn about a single hospital", "what it costs"),
        [(f"**{one.title}**", one.does, one.use_when, one.requester_learns, one.costs) for one in RULES],
        numbers=False,
    )


def _shared() -> tuple[Said, ...]:
    return tuple(one for one in RULES if one.variant != LOCAL)


def _together(found: Sequence[tuple[Compared, Sequence[RunLine]]]) -> list[tuple[str, ...]]:
    """A row for every rule that has run: for how many hospitals it paid, by what decides in each study."""
    rows = []
    for one in _shared():
        by_study = [gains(lines, one.variant, LOCAL, study.decides) for study, lines in found]
        counted = [gain for of_study in by_study for gain in of_study]
        if counted:
            better, worse = sum(gain.better for gain in counted), sum(gain.worse for gain in counted)
            same, studies = len(counted) - better - worse, sum(map(bool, by_study))
            rows.append((f"**{one.title}**", *map(str, (len(counted), studies, better, same, worse))))
    return rows


def _losses(study: Compared, lines: Sequence[RunLine]) -> list[str]:
    """A sentence for every rule that was clearly worse than training alone somewhere, by what decides."""
    sentences = []
    for one in _shared():
        lost = [gain for gain in gains(lines, one.variant, LOCAL, study.decides) if gain.worse]
        if lost:
            said = ", ".join(f"{gain.requester} ({gain.difference.mean:+.3f})" for gain in lost)
            sentences.append(
                f"- {study.title}: {one.title} has a worse {words_of(study.decides)} than training alone for {said}."
            )
    if requesters(lines) and not sentences:
        sentences.append(f"- {study.title}: no rule was clearly worse than training alone.")
    return sentences
