"""Counts that ``make soak`` and the benchmarks of load leave in their folder, as the page on reliability shows them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.bench.load import FIGURES, LoadBenchmark, slopes
from harness.papers.plots import Series
from harness.papers.recipes import recipes
from harness.papers.scores import Table
from harness.papers.simulated import Found
from protocol.errors import ConfigurationError

B = TypeVar("B", bound=BaseModel)
INPUTS: Final = "fuzz_inputs.json"
REQUESTS: Final = "fuzz_requests.json"
FAULTS: Final = "faults.json"
ENDURANCE: Final = "endurance.json"
TESTS: Final = "soak.xml"


class _Count(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Crash(_Count):
    """An input that was neither taken nor refused, or took long; ``data`` as hexadecimal digits."""

    decoder: str
    what: str
    data: str


class DecoderCount(_Count):
    """The inputs that one decoder took, and those that it refused."""

    name: str
    inputs: int
    taken: int
    refused: int
    crashes: int
    slowest_s: float


class FuzzedInputs(_Count):
    """Altered inputs. ``grown_mb``: by how much the process's largest memory grew after the first inputs."""

    seed: int
    inputs: int
    taken: int
    refused: int
    crashes: int
    cpu_s: float
    grown_mb: float
    decoders: tuple[DecoderCount, ...]
    found: tuple[Crash, ...]


class FuzzedRequests(_Count):
    """Requests to running servers. ``honest_rounds``: of another study meanwhile; ``data_mb``: left on the disk."""

    seed: int
    requests: int
    by_kind: dict[str, int]
    by_answer: dict[str, int]
    errors: tuple[str, ...]
    honest_rounds: int
    seconds: float
    grown_mb: float
    data_mb: float


class FaultCounts(BaseModel):
    """The part of ``moiety lab faults --out`` that the page shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    faults_injected: dict[str, int]


def reliability(runs: Path, data: Path | None) -> Found:
    """Tables and plots of the files that are there. Raises: ConfigurationError for one that is not of this version"""
    folder = runs / recipes()["reliability"]["soak"]
    inputs, requests = _read(folder / INPUTS, FuzzedInputs), _read(folder / REQUESTS, FuzzedRequests)
    faults, endurance = _read(folder / FAULTS, FaultCounts), _read(folder / ENDURANCE, LoadBenchmark)
    if inputs is not None:
        yield "reliability_inputs", _by_decoder(inputs)
    if requests is not None:
        yield "reliability_requests", _counts("kind", "requests", dict(sorted(requests.by_kind.items())))
        by_answer = sorted(requests.by_answer.items(), key=lambda one: -one[1])
        yield "reliability_answers", _counts("answer", "count", dict(by_answer))
    if faults is not None:
        yield "reliability_accidents", _counts("accident", "count", faults.faults_injected)
    if endurance is not None:
        rows = [
            (f"{one.what}, {one.unit}", f"{one.first:,.4g}", f"{one.last:,.4g}", f"{one.per_round:+,.3g}")
            for one in slopes(endurance.samples)
        ]
        yield "reliability_growth", [("what", "at first", "in the end", "a round"), *rows]
        yield "reliability_rows", _counts("table", "rows in both databases", endurance.rows)
        yield "plots/reliability_endurance", _over_rounds(endurance)
    if (folder / TESTS).exists():
        yield "reliability_tests", _tests(folder / TESTS)


def _read(path: Path, kind: type[B]) -> B | None:
    if not path.exists():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: {error.error_count()} fields are not those of this version; run 'make soak' again"
        ) from None


def _counts(what: str, count: str, found: dict[str, int]) -> Table:
    return [(what, count), *((name, f"{number:,}") for name, number in found.items())]


def _by_decoder(found: FuzzedInputs) -> Table:
    """Every kind of message has a decoder of its own; they are one row."""
    groups: dict[str, list[int]] = {}
    for one in found.decoders:
        counted = groups.setdefault("messages" if one.name.startswith("message ") else one.name, [0, 0, 0, 0])
        for place, number in enumerate((one.inputs, one.taken, one.refused, one.crashes)):
            counted[place] += number
    rows = ((kind, *(f"{number:,}" for number in numbers)) for kind, numbers in groups.items())
    return [("decoder", "inputs", "taken", "refused", "crashes"), *rows]


def _over_rounds(found: LoadBenchmark) -> Series:
    rows: Series = [
        (f"{what}, {unit}", "", sample.round, float(of(sample)), None)
        for what, unit, of in FIGURES
        for sample in found.samples
    ]
    for before, after in pairwise(found.samples):
        seconds = (after.seconds - before.seconds) / max(1, after.round - before.round)
        rows.append(("a round's time, s", "", after.round, seconds, None))
    return rows


def _tests(path: Path) -> Table:
    """Return the tests by module, from pytest's own report of the run."""
    cases: dict[str, list[ET.Element]] = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - a file that our own tests wrote
        cases.setdefault(case.get("classname", ""), []).append(case)
    table: Table = [("module", "passed", "failed", "skipped", "seconds")]
    for name, of in sorted(cases.items()):
        failed = sum(case.find("failure") is not None or case.find("error") is not None for case in of)
        skipped = sum(case.find("skipped") is not None for case in of)
        counts = map(str, (len(of) - failed - skipped, failed, skipped))
        table.append((name, *counts, f"{sum(float(case.get('time', '0')) for case in of):.0f}"))
    return table
