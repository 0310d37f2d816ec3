"""``moiety faults``: many seeds, over several processes, and one command for each that fails."""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer
from pydantic import BaseModel, ConfigDict

from harness.demo.live import console_for
from harness.faults.simulated import Simulated, simulated
from harness.versions import versions
from host.durable import write_durably
from protocol.errors import ConfigurationError

FORMAT: Final = "moiety-faults/1"
_SEEDS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_SEEDS: Final = 1_000_000
_CRITICAL: Final = 50


class Failure(BaseModel):
    """A seed that failed: what does not hold, and the command that shows it again."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int
    broken: tuple[str, ...]
    again: str


class Faults(BaseModel):
    """All seeds together, as ``--json`` writes it; ``steps`` are the requests that were sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    runs: int
    failed: int
    steps: int
    faults_injected: dict[str, int]
    ends: dict[str, int]
    failures: tuple[Failure, ...]
    versions: dict[str, str]


def faults(
    seeds: Annotated[str, typer.Option(help="A seed, or a range of them: 0-99.")] = "0-9",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for what was found, as JSON.")] = None,
) -> None:
    """Whole studies under seeded accidents: a network that loses, doubles, cuts and holds back, and restarts."""
    chosen, console, found = parsed(seeds), console_for(stderr=False), []
    for one in _run(chosen, jobs):
        found.append(one)
        for broken in one.failed:
            console.print(f"FAILED {one.seed}: {broken}", soft_wrap=True, highlight=False)
        if one.failed:
            console.print(f"again: {_again(one.seed)}", soft_wrap=True, highlight=False)
    together = collected(found)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(json_file, together.model_dump_json(indent=1).encode())
    injected = sum(together.faults_injected.values())
    console.print(f"{together.runs} runs, {together.failed} failed, {together.steps} steps, {injected} faults")
    raise typer.Exit(1 if together.failed else 0)


def parsed(seeds: str) -> range:
    """Raises: ConfigurationError"""
    found = _SEEDS.fullmatch(seeds)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last < first + _MOST_SEEDS:
        raise ConfigurationError(f"--seeds takes a number, or a range as 0-99, not {seeds!r}")
    return range(first, last + 1)


def collected(found: Iterable[Simulated]) -> Faults:
    """Sums over the seeds, and the failures by seed."""
    runs = sorted(found, key=lambda one: one.seed)
    failures = tuple(Failure(seed=r.seed, broken=r.failed, again=_again(r.seed)) for r in runs if r.failed)
    return Faults(
        runs=len(runs),
        failed=len(failures),
        steps=sum(one.steps for one in runs),
        faults_injected=dict(sorted(sum((one.injected for one in runs), Counter[str]()).items())),
        ends=dict(Counter(end.split(":")[0] for one in runs for end in one.ends)),
        failures=failures,
        versions={one.name: one.version for one in versions()},
    )


def _again(seed: int) -> str:
    return f"moiety faults --seeds {seed}"


def _run(seeds: range, jobs: int) -> Iterator[Simulated]:
    """In this process for one job: a debugger sees it."""
    if jobs == 1:
        _quiet()
        yield from map(simulated, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=context, initializer=_quiet) as pool:
        yield from pool.map(simulated, seeds)


def _quiet() -> None:
    """Accidents fill logs; what they break is said."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))
