"""What ``make soak`` leaves in its folder, as the page reads it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.bench.load import LoadBenchmark
from protocol.errors import ConfigurationError

B = TypeVar("B", bound=BaseModel)
INPUTS: Final = "fuzz_inputs.json"
REQUESTS: Final = "fuzz_requests.json"
FAULTS: Final = "faults.json"
LOAD: Final = "load_*.json"
ENDURANCE: Final = "endurance.json"
TESTS: Final = "soak.xml"
AGAIN: Final = "soak_again.xml"
"""Of the tests that failed beside the others, once more by themselves."""


class _Count(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Crash(_Count):
    """An input that was neither taken nor refused, or took long; ``data`` as hexadecimal digits."""

    decoder: str
    what: str
    data: str


class DecoderCount(_Count):
    """What one decoder was given: how many inputs it took, how many it refused."""

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
    """Of ``moiety faults --json``, what the page shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    runs: int
    failed: int
    steps: int
    faults_injected: dict[str, int]


@dataclass(frozen=True)
class TestedModule:
    """The tests of one module in a soak run. ``unmet``: why some were skipped."""

    name: str
    passed: int
    failed: tuple[str, ...]
    skipped: int
    seconds: float
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True)
class Soak:
    """Everything that is there; None and nothing for what is not."""

    inputs: FuzzedInputs | None
    requests: FuzzedRequests | None
    faults: FaultCounts | None
    loads: tuple[LoadBenchmark, ...]
    endurance: LoadBenchmark | None
    tests: tuple[TestedModule, ...]
    again: tuple[TestedModule, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """What has left it here, besides ``make soak`` itself."""
        loads = [one.command for one in self.loads]
        return (*loads, *([] if self.endurance is None else [self.endurance.command]))

    @property
    def missing(self) -> tuple[str, ...]:
        """What has not been run."""
        found = {
            "altered inputs": self.inputs,
            "requests": self.requests,
            "simulated accidents": self.faults,
            "load": self.loads,
            "endurance": self.endurance,
            "the tests of make soak": self.tests,
        }
        return tuple(name for name, one in found.items() if not one)


def read_soak(folder: Path) -> Soak:
    """Raises: ConfigurationError, which names a file that is not of this version"""
    return Soak(
        inputs=_read(folder / INPUTS, FuzzedInputs),
        requests=_read(folder / REQUESTS, FuzzedRequests),
        faults=_read(folder / FAULTS, FaultCounts),
        loads=tuple(_every(folder.glob(LOAD), LoadBenchmark)),
        endurance=_read(folder / ENDURANCE, LoadBenchmark),
        tests=_tests(folder / TESTS),
        again=_tests(folder / AGAIN),
    )


def _every(files: Iterable[Path], kind: type[B]) -> Iterable[B]:
    for path in sorted(files):
        found = _read(path, kind)
        if found is not None:
            yield found


def _read(path: Path, kind: type[B]) -> B | None:
    if not path.exists():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: {error.error_count()} fields are not those of this version; run 'make soak' again"
        ) from None


def _tests(path: Path) -> tuple[TestedModule, ...]:
    """By module, from pytest's own report of the run."""
    if not path.exists():
        return ()
    cases: dict[str, list[ET.Element]] = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - a file that our own tests wrote
        cases.setdefault(case.get("classname", ""), []).append(case)
    return tuple(_module(name, of) for name, of in sorted(cases.items()))


def _module(name: str, cases: list[ET.Element]) -> TestedModule:
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [found for case in cases if (found := case.find("skipped")) is not None]
    return TestedModule(
        name=name,
        passed=len(cases) - len(wrong) - len(skipped),
        failed=tuple(case.get("name", "") for case in wrong),
        skipped=len(skipped),
        seconds=sum(float(case.get("time", "0")) for case in cases),
        unmet=tuple(dict.fromkeys(found.get("message", "") for found in skipped)),
    )
