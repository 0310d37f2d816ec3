"""One page that a clinician can read: what each rule does for the hospital that asks, discloses and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.papers.by_requester import gains, requesters
from harness.papers.page import Page
from harness.simulation.runs import RunLine

LOCAL: Final = "local"
CASES: Final = {
    "heart_disease": "heart disease, four hospitals",
    "titanic_age_strict": "passengers by age group",
    "titanic_age_some": "passengers, two alike groups",
}


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
    page.heading("What it did for the hospital that asked")
    page.text(
        "Accuracy on its own test patients against training alone with the same patients: for how many requesters a "
        "rule was clearly better (more than two standard errors), no clear difference, clearly worse. These are small "
        "public studies, not your data."
    )
    found = {case: tuple(runs[case]) for case in CASES if runs.get(case)}
    missing = [title for case, title in CASES.items() if case not in found]
    rows = [
        (f"**{one.title}**", *(_better_same_worse(lines, one.variant) for lines in found.values()))
        for one in RULES
        if one.variant != LOCAL
    ]
    if found:
        page.table(("rule: better / same / worse", *(CASES[case] for case in found)), rows)
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")
    page.heading("Where a rule loses")
    sentences = [sentence for case, lines in found.items() for sentence in _losses(CASES[case], lines)]
    page.text("\n".join(sentences) or "No rule was clearly worse than training alone in the studies that have run.")


def _better_same_worse(lines: Sequence[RunLine], variant: str) -> str:
    found = [gain for _, gain in gains(lines, variant, LOCAL)]
    if not found:
        return "not run"
    better = sum(gain.clearly_positive for gain in found)
    worse = sum(gain.clearly_negative for gain in found)
    return f"{better} / {len(found) - better - worse} / {worse}"


def _losses(title: str, lines: Sequence[RunLine]) -> list[str]:
    """A sentence for every rule that was clearly worse than training alone somewhere."""
    sentences = []
    for one in RULES:
        lost = [(name, gain) for name, gain in gains(lines, one.variant, LOCAL) if gain.clearly_negative]
        if lost:
            said = ", ".join(f"{name} ({gain.mean:+.3f})" for name, gain in lost)
            sentences.append(f"- {title}: {one.title} does worse than training alone for {said}.")
    if requesters(lines) and not sentences:
        sentences.append(f"- {title}: no rule was clearly worse than training alone.")
    return sentences
