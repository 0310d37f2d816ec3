"""Which cases each page needs, and the way from cases to pages: run what is missing, then write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.papers import clinicians, har_strategies, heart_disease, mnist, titanic
from harness.papers.page import Page
from harness.simulation.case import Case, read_case
from harness.simulation.case_run import CaseOptions, CaseProgress, run_case
from harness.simulation.run_one import Protection
from harness.simulation.runs import RunLine
from harness.simulation.store import Results

STUDIES: Final = Path(__file__).resolve().parent.parent / "studies"
Runs = Mapping[str, Sequence[RunLine]]


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
        words += [f"--seeds {','.join(map(str, self.seeds))}"] if self.seeds else []
        words += [f"--only {','.join(self.only)}"] if self.only else []
        words += [f"--protection {self.protection.value}"] if self.protection is not Protection.PLAIN else []
        return " ".join([*words, f"--out results-out/{self.folder}"])


@dataclass(frozen=True)
class PageSpec:
    """A page, the cases behind it, and what writes it."""

    name: str
    title: str
    uses: tuple[CaseUse, ...]
    write: Callable[[Page, Runs, Path | None], None]


_ALL_THREE: Final = ("weight_erosion", "fedavg", "local")
_TITANIC: Final = tuple(CaseUse(case) for case in titanic.CASES)
_STRATEGIES: Final = tuple(CaseUse(f"har_strategies_{split}") for split in har_strategies.SPLITS)
_PROTECTED: Final = tuple(
    CaseUse(f"har_strategies_{split}", (0,), ("wfedavg",), protection)
    for split in har_strategies.SPLITS
    for protection in (Protection.SECURE,)
)
_HEART: Final = CaseUse(heart_disease.CASE)
PAGES: Final = (
    PageSpec("titanic", "Titanic: passengers by age", _TITANIC, titanic.write),
    PageSpec("heart_disease", "Heart disease: four hospitals", (_HEART,), heart_disease.write),
    PageSpec("har_strategies", "HAR: aggregation strategies", (*_STRATEGIES, *_PROTECTED), har_strategies.write),
    PageSpec("clinicians", "Which rule for my patients?", (_HEART, *_TITANIC), clinicians.write),
    PageSpec(
        "mnist",
        "MNIST: label skew over 10 and 100 sites",
        tuple(
            CaseUse(f"mnist_{name}", (0, 1, 2) if name in ("b_100", "c_100") else (0,), _ALL_THREE)
            for name in mnist.SETTINGS
        ),
        mnist.write,
    ),
)


def case_of(use: CaseUse) -> Case:
    """Raises: ConfigurationError"""
    return read_case(STUDIES / f"{use.case}.toml")


def run_missing(
    spec: PageSpec, runs: Path, data: Path | None, jobs: int, show: Callable[[str, CaseProgress], None]
) -> None:
    """Every run of the page's cases that ``runs`` does not hold yet. Raises: ConfigurationError"""
    for use in spec.uses:
        options = CaseOptions(runs / use.folder, data, use.seeds, use.only, use.protection, jobs)
        run_case(case_of(use), options, lambda progress, name=use.folder: show(name, progress))  # type: ignore[misc]


def write_page(spec: PageSpec, runs: Path, out: Path, data: Path | None) -> Path:
    """The page from the runs that are there; what is missing is named on it. Returns the file."""
    found: dict[str, tuple[RunLine, ...]] = {use.folder: Results(runs / use.folder).lines() for use in spec.uses}
    page = Page(out / f"{spec.name}.md", spec.title)
    spec.write(page, found, data)
    lines = [line for of_case in found.values() for line in of_case]
    page.made_by([use.command for use in spec.uses], lines)
    page.write()
    return page.path
