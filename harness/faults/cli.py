"""``moiety lab faults``: many seeds, over several processes, and one command for each that fails."""

from __future__ import annotations

import gc
import multiprocessing
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import structlog

from client_agent.cli.tables import console as console_for
from harness.faults.schedule import Level, Schedule, Shrinking
from harness.faults.simulation import Failure, Simulated, Tally
from harness.faults.simulator import replayed, simulated
from host.output_files import rewrite
from host.settings import read_text
from protocol.errors import ConfigurationError

_SEEDS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_SEEDS: Final = 1_000_000
_CRITICAL: Final = 50
Run = Callable[[int], Simulated]
RUNS: Final[dict[Level, Run]] = {level: partial(simulated, level=level) for level in Level}


def run_faults(
    seeds: str, jobs: int, out: Path | None, resume: bool, replay: Path | None, shrink: bool, servers: bool
) -> bool:
    """Make all runs, or replay one, and say what failed. Schedules of failing seeds lie in faults-out.

    ``resume``: after the last seed that is in ``out``. Returns: whether all held
    """
    console, level = console_for(stderr=False), Level.SERVERS if servers else Level.STUDIES
    schedules = (out.parent if out is not None else Path()) / "faults-out"
    planned = parsed(seeds)
    tally = Tally(out, level.value, planned, go_on=resume)
    running = [_replay(replay)] if replay is not None else _run(RUNS[level], tally.left, jobs)
    for one in _with_progress(running, len(planned) - len(tally.left), 1 if replay is not None else len(planned)):
        for broken in one.failed:
            console.print(f"FAILED {one.seed}: {broken}", soft_wrap=True, highlight=False)
        failure = _kept(one, schedules, shrink) if one.failed and replay is None else None
        if failure is not None:
            of = f"{failure.faults} of {failure.of_faults} faults are left"
            console.print(f"{of}; again: {failure.again}", soft_wrap=True, highlight=False)
        tally.add(one, failure)
    tally.write()
    together = tally.found
    injected = sum(together.faults_injected.values())
    console.print(f"{together.runs} runs, {together.failed} failed, {together.steps} steps, {injected} faults")
    return not together.failed


def _with_progress(running: Iterable[Simulated], before: int, total: int) -> Iterator[Simulated]:
    """Say on standard error how many runs are done: one line that updates; piped, a line per hundredth."""
    console, step = console_for(stderr=True), max(1, total // 100)
    with console.status(f"{before} of {total} runs done") as status:
        for done, one in enumerate(running, before + 1):
            yield one
            status.update(f"{done} of {total} runs done")
            if not console.is_terminal and (done % step == 0 or done == total):
                console.print(f"{done} of {total} runs done", highlight=False)


def _replay(file: Path) -> Simulated:
    """Raises: ConfigurationError, when it cannot be read or is no schedule"""
    quiet()
    return replayed(Schedule.read(read_text(file), str(file)))


def _kept(one: Simulated, folder: Path, shrink: bool) -> Failure:
    """Its schedule in a file, as short as it can be and still break one of the same promises."""
    schedule = one.schedule
    if shrink:
        schedule = Shrinking(lambda some: replayed(some).promises).shrunk(schedule, one.promises)
    file = folder / f"seed-{one.seed}.json"
    rewrite(file, schedule.model_dump_json(indent=1))
    left, of = len(schedule.faults), len(one.schedule.faults)
    command = f"moiety lab faults --replay {file}"
    return Failure(seed=one.seed, broken=one.failed, again=command, faults=left, of_faults=of)


def parsed(seeds: str) -> range:
    """Raises: ConfigurationError"""
    found = _SEEDS.fullmatch(seeds)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last < first + _MOST_SEEDS:
        raise ConfigurationError(f"--seeds takes a number, or a range as 0-99, not {seeds!r}")
    return range(first, last + 1)


def _run(run: Run, seeds: range, jobs: int) -> Iterator[Simulated]:
    """In this process for one job: a debugger sees it."""
    counted = partial(_counted, run)
    if jobs == 1 or not seeds:
        quiet()
        yield from map(counted, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=context, initializer=quiet) as pool:
        yield from pool.map(counted, seeds)


def _counted(run: Run, seed: int) -> Simulated:
    began_s = time.process_time()
    found = run(seed)
    spent_s = time.process_time() - began_s
    _keep_what_is_loaded()
    return replace(found, cpu_s=spent_s)


@cache
def _keep_what_is_loaded() -> None:
    """Modules and keys that a first run loads are not looked through for garbage any more: a twelfth of a run's CPU."""
    gc.collect()
    gc.freeze()


def quiet() -> None:
    """Log nothing but critical errors: accidents fill logs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))
