"""Which cases each page needs, and the way from cases to pages: run what is missing, then write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from harness.papers import (
    clinicians,
    does_it_pay,
    har_ifedavg,
    har_strategies,
    heart_disease,
    mnist,
    other_tasks,
    titanic,
)
from harness.papers.attacked.leak import LeakPage
from harness.papers.attacked.privacy import PrivacyPage
from harness.papers.attacked.sums import SumsPage
from harness.papers.making import Making
from harness.papers.noise.noise import NoisePage
from harness.papers.page import Page
from harness.papers.reliability.reliability import ReliabilityPage
from harness.papers.robustness.page import RobustnessPage
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.comparison import read_personal_case
from harness.simulate.comparison_report import PersonalOptions, run_personal_case
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.store import Results
from harness.simulate.study_files import STUDIES

Runs = Mapping[str, Sequence[RunLine]]


class PageSpec(Protocol):
    """A page, and how the runs behind it are made."""

    @property
    def name(self) -> str: ...

    def run_missing(self, making: Making) -> None:
        """Every run that is not there yet. Raises: ConfigurationError"""
        ...

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the runs below ``runs``; what is missing is named on it. Returns the file."""
        ...


@dataclass(frozen=True)
class CaseUse:
    """A case as a page needs it; None: the case's own seeds, all variants."""

    case: str
    seeds: tuple[int, ...] | None = None
    only: tuple[str, ...] | None = None
    protection: Protection = Protection.PLAIN

    @property
    def folder(self) -> str:
        """Protected runs of a case lie apart from plain ones."""
        return self.case if self.protection is Protection.PLAIN else f"{self.case}_{self.protection.value}"

    @property
    def command(self) -> str:
        """What a person types for it."""
        words = [f"moiety simulate harness/studies/{self.case}.toml"]
        words += [f"--seeds {_seeds(self.seeds)}"] if self.seeds else []
        words += [f"--only {','.join(self.only)}"] if self.only else []
        words += [f"--protection {self.protection.value}"] if self.protection is not Protection.PLAIN else []
        return " ".join([*words, f"--out results-out/{self.folder}"])

    def read(self) -> Case:
        """Raises: ConfigurationError"""
        return read_case(STUDIES / f"{self.case}.toml")


@dataclass(frozen=True)
class CasesPage:
    """A page about the requester's model, from cases of ``moiety simulate``.

    ``on_gpu``: cases that are made on a GPU only, for they take days without one; shown where they have run.
    """

    name: str
    title: str
    uses: tuple[CaseUse, ...]
    write: Callable[[Page, Runs, Path | None], None]
    on_gpu: tuple[CaseUse, ...] = ()

    def run_missing(self, making: Making) -> None:
        """See :class:`PageSpec`."""
        computing = making.computing
        for use in (*self.uses, *(self.on_gpu if computing.device.type == "cuda" else ())):
            making.tell(use.command)
            options = CaseOptions(
                making.runs / use.folder, making.data, use.seeds, use.only, use.protection, making.jobs
            )
            case = use.read()
            making.get_data(case.table.data)
            run_case(case, replace(options, computing=computing, cluster=making.cluster))

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """See :class:`PageSpec`."""
        every = (*self.uses, *self.on_gpu)
        found: dict[str, tuple[RunLine, ...]] = {use.folder: Results(runs / use.folder).lines() for use in every}
        shown = [use.command for use in every if use in self.uses or found[use.folder]]
        page = Page(out / f"{self.name}.md", self.title)
        self.write(page, found, data)
        page.made_by(shown, [line for lines in found.values() for line in lines])
        page.write()
        return page.path


@dataclass(frozen=True)
class PersonalPage:
    """The page about every site's own model."""

    name: str
    title: str
    cases: tuple[str, ...]

    def run_missing(self, making: Making) -> None:
        """See :class:`PageSpec`; one process, whatever ``jobs``."""
        for case in self.cases:
            making.tell(f"moiety simulate harness/studies/{case}.toml --out results-out/{case}")
            options = PersonalOptions(making.runs / case, making.data, device=making.device)
            read = read_personal_case(STUDIES / f"{case}.toml")
            making.get_data(read.table.data)
            run_personal_case(read, options, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """See :class:`PageSpec`."""
        page = Page(out / f"{self.name}.md", self.title)
        har_ifedavg.write(page, STUDIES, runs)
        page.write()
        return page.path


def _seeds(seeds: tuple[int, ...]) -> str:
    """As an option: 0-9 where none between is left out."""
    whole = len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))


_ALL_THREE: Final = ("weight_erosion", "fedavg", "local")
_MNIST: Final = (
    *(
        CaseUse(f"mnist_{name}", (0, 1, 2) if name in ("b_100", "c_100") else (0,), _ALL_THREE)
        for name in mnist.SETTINGS
    ),
    CaseUse("mnist_b_10", (0,), ("weight_erosion",), Protection.SECURE),
)
_MNIST_ON_GPU: Final = tuple(
    CaseUse(f"mnist_{letter}_{sites}", (0,), _ALL_THREE)
    for letter in "abcdefg"
    for sites in (10, 20, 50, 100)
    if f"{letter}_{sites}" not in mnist.SETTINGS
)
_TITANIC: Final = tuple(CaseUse(case, tuple(range(10))) for case in titanic.CASES)
_STRATEGIES: Final = tuple(CaseUse(f"har_strategies_{split}") for split in har_strategies.SPLITS)
_PROTECTED: Final = tuple(
    CaseUse(f"har_strategies_{split}", (0,), ("fedavg", "wfedavg"), protection)
    for split in har_strategies.SPLITS
    for protection in (Protection.SECURE, Protection.CKKS)
)
_HEART: Final = CaseUse(heart_disease.CASE)
_SURVIVAL: Final = CaseUse(other_tasks.SURVIVAL.case)
_REGRESSION: Final = CaseUse(other_tasks.REGRESSION.case)
_PAYS: Final = tuple(
    CaseUse(study.case) if study.few else CaseUse(study.case, (0, 1, 2)) for study in does_it_pay.STUDIES
)
_PAYS_FEW: Final = tuple(CaseUse(study.case) for study in does_it_pay.STUDIES if study.few)
PAGES: Final[tuple[PageSpec, ...]] = (
    CasesPage("titanic", "Titanic: passengers by age", _TITANIC, titanic.write),
    CasesPage("heart_disease", "Heart disease: four hospitals", (_HEART,), heart_disease.write),
    CasesPage("survival", "Survival: breast cancer in five hospitals", (_SURVIVAL,), other_tasks.SURVIVAL.write),
    CasesPage("regression", "Regression: diabetes in five practices", (_REGRESSION,), other_tasks.REGRESSION.write),
    CasesPage("har_strategies", "HAR: aggregation strategies", (*_STRATEGIES, *_PROTECTED), har_strategies.write),
    PersonalPage("har_ifedavg", "HAR: personal layers", (har_ifedavg.CASE, *har_ifedavg.TAMPERED)),
    CasesPage("mnist", "MNIST: label skew over 10 and 100 sites", _MNIST, mnist.write, _MNIST_ON_GPU),
    NoisePage("differential_privacy", "What noise costs", STUDIES),
    PrivacyPage("privacy", "What can they still infer?", STUDIES),
    SumsPage("sums", "What sums give away", STUDIES),
    ReliabilityPage("reliability", "What was tried to break it"),
    LeakPage("leak", "What falsified products tell a server"),
    RobustnessPage("robustness", "What poisoners, liars and distances can do", STUDIES),
    CasesPage("does_it_pay", "Does it pay to join?", _PAYS, does_it_pay.write),
    CasesPage("clinicians", "Which rule for my patients?", _PAYS_FEW, clinicians.write),
)
