"""The page on reliability: what was tried, how much of it, and what came out, from the files of ``make soak``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from client_agent.drawn.curves import Curve, chart
from harness.bench.load import FIGURES, LoadBenchmark, load_lines, slopes
from harness.papers.making import Making
from harness.papers.page import Page
from harness.papers.reliability.counts import FaultCounts, FuzzedInputs, FuzzedRequests, Soak, TestedModule, read_soak

SOAK: Final = "soak"
"""The folder below that of all runs."""
_COMMANDS: Final = (
    "make soak                  # altered inputs and requests, kills, simulated accidents, every test that takes long",
    "# and, each with --json and a file in the folder that make soak writes to:",
    "{}",
    "moiety results --only reliability",
)
_INTRODUCTION: Final = (
    "Everything on this page was tried against the system as it is, and what failed is printed as what passed is. A "
    "count says how much was tried, never that nothing is left to find."
)
_PARTS: Final = 6


@dataclass(frozen=True)
class ReliabilityPage:
    """Written from what ``make soak`` and some benchmarks have left; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str

    def run_missing(self, making: Making) -> None:
        """Hours of accidents are asked for by name, not by the way."""
        if read_soak(making.runs / SOAK).missing:
            making.tell(f"{self.name}: 'make soak' and the commands at the page's end write what is missing")

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """See :class:`PageSpec`."""
        soak, page = read_soak(runs / SOAK), Page(out / f"{self.name}.md", self.title)
        page.text(_INTRODUCTION)
        if soak.missing:
            page.text(f"**Not run yet:** {', '.join(soak.missing)}.")
        _write(page, soak)
        listed = "\n".join(_COMMANDS).format("\n".join(soak.commands))
        found = _PARTS - len(soak.missing)
        page.heading("How this page was made")
        page.text(f"```sh\n{listed}\n```\n\n{found} runs of {_PARTS} are on this page.")
        page.write()
        return page.path


def _write(page: Page, soak: Soak) -> None:
    if soak.inputs is not None:
        _inputs(page, soak.inputs)
    if soak.requests is not None:
        _requests(page, soak.requests)
    if soak.faults is not None:
        _faults(page, soak.faults)
    if soak.loads:
        _load(page, soak.loads)
    if soak.endurance is not None:
        _endurance(page, soak.endurance)
    if soak.tests:
        _tests(page, soak.tests)
    if soak.again:
        _again(page, soak.again)


def _inputs(page: Page, found: FuzzedInputs) -> None:
    page.heading("Altered inputs into every decoder")
    page.text(
        f"{found.inputs:,} inputs from seed {found.seed}, into {len(found.decoders)} decoders: every kind of message, "
        "files, lines, envelopes, bodies, and what is inside of their seals. Valid inputs with bytes altered, cut, "
        "doubled and mixed, and JSON with other values, names and depths. Whatever is neither taken nor refused in so "
        "many words is a crash, and so is a warning, or half a second of CPU for one input. "
        f"**Crashes: {found.crashes}.** Taken {found.taken:,}, refused {found.refused:,}; {found.cpu_s:.0f} s of CPU, "
        f"memory grew by {found.grown_mb:.0f} MB, the slowest input took "
        f"{1000 * max(one.slowest_s for one in found.decoders):.0f} ms."
    )
    groups: dict[str, list[int]] = {}
    for one in found.decoders:
        kind = "messages" if one.name.startswith("message ") else one.name
        counted = groups.setdefault(kind, [0, 0, 0, 0])
        for place, number in enumerate((one.inputs, one.taken, one.refused, one.crashes)):
            counted[place] += number
    rows = [(kind, *(f"{number:,}" for number in numbers)) for kind, numbers in groups.items()]
    page.table(("decoder", "inputs", "taken", "refused", "crashes"), rows)
    for crash in found.found:
        page.text(f"- {crash.decoder}: {crash.what}")


def _requests(page: Page, found: FuzzedRequests) -> None:
    page.heading("Requests that nobody means")
    page.text(
        f"{found.requests:,} requests from seed {found.seed} to the real ports of both servers in {found.seconds:.0f} "
        "s: without a key, by a site, by the requester and by the other server, altered on their way, with wrong "
        "heads, chunks, lengths, encodings and paths, what each server's own description allows and forbids, and "
        f"uploads that never end. Other sites' study went on: {found.honest_rounds} rounds were released meanwhile. "
        f"**Answers of 500, lines of internal errors: {len(found.errors)}.** The larger server's memory grew by "
        f"{found.grown_mb:.0f} MB; {found.data_mb:.0f} MB lay in both data folders in the end."
    )
    page.table(("kind", "requests"), [(kind, f"{count:,}") for kind, count in sorted(found.by_kind.items())])
    answered = sorted(found.by_answer.items(), key=lambda one: -one[1])
    page.table(("answer", "count"), [(answer, f"{count:,}") for answer, count in answered])
    for error in found.errors:
        page.text(f"- {error}")


def _faults(page: Page, found: FaultCounts) -> None:
    page.heading("Simulated accidents")
    injected = sum(found.faults_injected.values())
    page.text(
        f"{found.runs:,} whole studies under accidents that a seed draws (`moiety faults`), {found.steps:,} requests, "
        f"{injected:,} accidents. **Studies after which something did not hold: {found.failed}.**"
    )
    page.table(("accident", "count"), [(kind, f"{count:,}") for kind, count in found.faults_injected.items()])


def _load(page: Page, loads: Sequence[LoadBenchmark]) -> None:
    page.heading("Load")
    page.text("Percentiles of every call are in [benchmarks](../benchmarks.md).")
    for load in loads:
        page.text("\n".join(f"- {line}" for line in load_lines(load)))


def _endurance(page: Page, found: LoadBenchmark) -> None:
    page.heading("Many rounds")
    errors = ", ".join(f"{count} x {what}" for what, count in found.errors.items()) or "none"
    page.text(
        f"One study of {found.sites} sites and {found.parameters} parameters: {found.released} rounds released of "
        f"{found.rounds} asked for, in {found.seconds:.0f} s, on a machine with a load of {found.machine_load:.1f}. "
        f"Errors: {errors}. Straight lines through what was measured after every round, without the first fifth and "
        "without the eleven minutes after which the first nonces are forgotten, where the study lasts. What is signed "
        "in a round is kept for an audit, at servers and sites, and sites remember the sums they were in: databases "
        "and agents' files grow by that. Times and CPU are those of a machine that others may use too: where its load "
        "rises, they do."
    )
    rows = [
        (f"{one.what}, {one.unit}", f"{one.first:,.4g}", f"{one.last:,.4g}", f"{one.per_round:+,.3g}")
        for one in slopes(found.samples)
    ]
    page.table(("what", "at first", "in the end", "a round"), rows)
    for place, (what, unit, of) in enumerate(FIGURES):
        points = tuple((sample.round, float(of(sample))) for sample in found.samples)
        page.figure(f"endurance_{place}", chart([Curve(what, points)], unit, floor=0.0), f"{what}, {unit}, by round")
    times = tuple((b.round, (b.seconds - a.seconds) / max(1, b.round - a.round)) for a, b in pairwise(found.samples))
    drawn = chart([Curve("a round", times)], "seconds", floor=0.0)
    page.figure("endurance_time", drawn, "seconds a round, by round")
    page.table(("table", "rows in both databases"), [(table, f"{count:,}") for table, count in found.rows.items()])


def _tests(page: Page, found: Sequence[TestedModule]) -> None:
    page.heading("The tests of `make soak`")
    page.text(_totals(found))
    rows = [(one.name, str(one.passed), str(len(one.failed)), str(one.skipped), f"{one.seconds:.0f}") for one in found]
    page.table(("module", "passed", "failed", "skipped", "seconds"), rows)
    for one in found:
        for name in one.failed:
            page.text(f"- **failed:** {one.name}: {name}")
        for why in one.unmet:
            page.text(f"- skipped: {one.name}: {why}")


def _totals(found: Sequence[TestedModule]) -> str:
    passed, failed = sum(one.passed for one in found), sum(len(one.failed) for one in found)
    skipped, seconds = sum(one.skipped for one in found), sum(one.seconds for one in found)
    return f"{passed} passed, {failed} failed, {skipped} skipped, in {seconds:.0f} s."


def _again(page: Page, found: Sequence[TestedModule]) -> None:
    """What failed beside the others, once more without them: a timeout of a busy machine, or not."""
    failed = [f"{one.name}: {name}" for one in found for name in one.failed]
    page.text(f"Those that failed ran once more by themselves: {_totals(found)}")
    for name in failed:
        page.text(f"- **failed again:** {name}")
