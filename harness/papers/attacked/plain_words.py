"""The beginning of the privacy page: who can learn what about patients, for readers who do not code, with figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.differencing.lines import DifferencedLine
from harness.adversaries.inferring.class_mix import guessed
from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.adversaries.inferring.memorised_lines import MemorisedLine
from harness.adversaries.inverting.lines import InversionLine
from harness.adversaries.reconstruction import Prior
from harness.papers.attacked.memorised import of_variant, shadowed
from harness.papers.attacked.records import share
from harness.papers.attacked.sums_runs import SHIPPED
from harness.papers.page import Page
from harness.simulate.charts import number

_INTRODUCTION: Final = (
    "For a data protection officer, and whoever else asks what a study tells about patients although no single server "
    "sees a hospital's update. Everything below was tried: the attacks of the literature, each with the figure of "
    "somebody who only guesses beside it. No bound: figures are of these attacks on these data, and a better "
    "attack may come. What a study opens is [in the protocol](../protocol.md); who can break what is in [the threat "
    "model](../threat_model.md)."
)
_WHO: Final = (
    "- **One server** sees who took part and when, and the model's size. Nothing that it stores depends on patients "
    "(the attacks of curious servers in `moiety attack --list` try).\n"
    "- **Any hospital in a study, and whoever gets the model later,** has the model; hospitals and the requester have "
    "every round's average besides. From these: whether somebody's record was trained on, and, from averages of few "
    "records, the records themselves.\n"
    "- **Any listed hospital** also sees the list of weights, **the requester** under some rules the distances: how a "
    "hospital's patients differ from the requester's.\n"
    "- **The requester and hospitals together** can take their own parts out of every average: what is left is one "
    "over fewer hospitals. With all but one it is that one's update.\n"
    "- **Both servers together** have everything."
)


_HOW_TO_READ: Final = (
    "*Read*: a table's columns within 0.3 standard deviations in the mean, an image at 20 dB. *Pairs*: of a patient "
    "who was trained on and one who was not, which is which? *Explained*: the part of the differences between "
    "hospitals that the number tells; 0 % is no better than guessing the mean. *A guess*: by somebody who has none of "
    "what is attacked."
)


@dataclass(frozen=True)
class Measured:
    """Everything that has run."""

    records: Sequence[InversionLine]
    memorised: Sequence[MemorisedLine]
    inferred: Sequence[InferenceLine]
    differenced: Sequence[DifferencedLine]
    attacked: Sequence[AttackLine]


def write_plain_words(page: Page, measured: Measured, studies: Path) -> None:
    """Who has what, and a table of questions with the figures of today's runs."""
    page.text(_INTRODUCTION)
    page.heading("In plain words")
    page.text(_WHO)
    page.text(_HOW_TO_READ)
    page.table(("question", "who could ask", "answer here", "a guess"), _rows(measured), numbers=False)
    page.text(_ADVICE)


_ADVICE: Final = (
    "What follows from it, for whoever writes a study or a policy:\n\n"
    "- **Many records in every sum:** hospitals times batch of at least a few hundred for a network; an epoch of "
    "local steps has all of a hospital's.\n"
    "- **Fresh batches rather than full ones, few rounds, and a list that seldom changes,** so that sums of many "
    "rounds are no system of equations; the sites' limit on isolation sees to it.\n"
    "- **Stop before the model knows its patients:** a model that does clearly better on training than on test "
    "records tells who was trained on, and no protection of updates changes that.\n"
    "- **Rules that weigh by distance tell how patients differ.** Where even that must not be known, FedAvg opens "
    "nothing about a single site.\n"
    "- **A bound, whatever the attack, is differential privacy's alone.** Noise that covers records is built in and "
    "off unless a study asks for it ([what it costs](differential_privacy.md)); rows that do not name it are without."
)


def _rows(measured: Measured) -> list[tuple[str, ...]]:
    return [*_of_records(measured.records), *_of_membership(measured), *_of_sites(measured)]


_SIZES: Final = (
    (1, 1, "of one patient alone"),
    (4, 8, "of four hospitals, 8 patients each"),
    (8, 32, "of eight hospitals, 32 patients each"),
)
_MODELS: Final = (
    ("linear_fedavg", "a linear model"),
    ("large_fedavg", "a network that memorises"),
    ("small_noise_1", "a small network under record-level noise 1"),
)
_STUDIES: Final = {"heart-disease": "heart disease", "poisoning": "digits"}
_TABLES: Final = ("breast-mlp", "heart-mlp")
_IMAGES: Final = ("digits-mlp", "mnist-mlp")


def _of_records(lines: Sequence[InversionLine]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for sites, batch, words in _SIZES:
        tables, images = ([share(lines, key, sites, batch, exact=False) for key in keys] for keys in (_TABLES, _IMAGES))
        said = f"{_percent(tables)} of records of tables, {_percent(images)} of images"
        question = f"Can a record be read out of an average {words}? A small network"
        found.append((question, "every hospital in the sum, the requester", said, _guess(lines, sites, batch)))
    noised = [share(lines, key, 1, 1, exact=False) for key in ("heart-noise-little", "digits-noise-little")]
    said = f"{_percent(noised[:1])} of records of tables, {_percent(noised[1:])} of images"
    alone = "The same of one patient alone, under record-level noise 0.1"
    return [*found, (alone, "every hospital in the sum, the requester", said, _guess(lines, 1, 1))]


def _guess(lines: Sequence[InversionLine], sites: int, batch: int) -> str:
    of_size = [one for one in lines if (one.sites, one.batch) == (sites, batch)]
    values = [
        [one.close for line in of_size if line.target in keys for one in line.attacks if one.how.value == "guessed"]
        for keys in (_TABLES, _IMAGES)
    ]
    return ", ".join(_percent([mean(one)] if one else []) for one in values)


def _of_membership(measured: Measured) -> list[tuple[str, ...]]:
    who = "whoever has the last model"
    shipped = [line.by_loss for line in measured.inferred]
    rows: list[tuple[str, ...]] = [
        ("Was this patient trained on? Studies as shipped", who, _auc(shipped), "50 % right"),
    ]
    for variant, words in _MODELS:
        found = of_variant(measured.memorised, variant)
        rows.append((f"The same, {words}, heart disease", who, _auc([one.by_loss[-1] for one in found]), "50 % right"))
        rows.append(
            (
                f"The same, {words}, by somebody with fifteen more such federations",
                "nobody: an upper bound",
                _auc(shadowed(found)),
                "50 % right",
            )
        )
    return rows


def _of_sites(measured: Measured) -> list[tuple[str, ...]]:
    mixes = [_explained(measured.inferred, study, "distance") for study in _STUDIES]
    weights = [_explained(measured.inferred, study, "weight") for study in _STUDIES]
    now = [_error_now(line) for line in measured.attacked if _is_shipped_now(line)]
    errors = [error for error in now if error is not None]
    full = [one.achieved for one in measured.differenced if one.setting == "full batches"]
    update = f"off by {number(mean(errors))} of its length" if errors else "not run"
    without = f"off by {number(mean(full))} of its length" if full else "not run"
    mix, requester = "How does a hospital's class mix differ from the requester's? Weight Erosion", "the requester"
    shipped = "What is a hospital's update? Studies as shipped, policies as they are"
    apart = "The same, two sums that differ by one hospital, full batches, policies off"
    return [
        (mix, f"{requester}, by distances", " and ".join(mixes), "0 % explained"),
        ("The same", "every listed hospital, by weights", " and ".join(weights), "0 % explained"),
        (shipped, f"{requester}, from all sums", update, "about 1"),
        (apart, requester, without, "about 1"),
    ]


def _percent(shares: Sequence[float | None]) -> str:
    known = [one for one in shares if one is not None]
    return f"{100 * mean(known):.0f} %" if known else "not run"


def _auc(found: Sequence[Told]) -> str:
    """How often a member is told from another, and what is found at one false alarm in a hundred."""
    if not found:
        return "not run"
    area, rate = mean(one.auc for one in found), mean(one.at_one_percent for one in found)
    return f"{100 * area:.0f} % of pairs right; {100 * rate:.0f} of 100 found at one false alarm in a hundred"


def _explained(lines: Sequence[InferenceLine], study: str, by: str) -> str:
    of_study = [line for line in lines if (line.study, line.variant) == (study, "weight_erosion")]
    found = guessed(of_study, by) if of_study else None
    return "not run" if found is None else f"{100 * found.explained:.0f} % explained ({_STUDIES[study]})"


def _is_shipped_now(line: AttackLine) -> bool:
    return (line.study, line.setting) in {(one.key, "now") for one in SHIPPED}


def _error_now(line: AttackLine) -> float | None:
    """The middle round's error of the site that is known best, by the requester with what it has."""
    found = [
        median
        for prior in (Prior.AVERAGE, Prior.OWN, Prior.FITTED)
        if (one := line.by((line.requester,), prior)) is not None
        for site in one.errors
        if (median := one.median(site)) is not None
    ]
    return min(found, default=None)
