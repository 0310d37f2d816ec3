"""``moiety bench``: what a round costs, what others cost, and the page that says so."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import structlog
import typer

from harness.bench.results import Benchmark, write_result
from host.output_files import rewrite, writable, writable_folder

DEFAULT_CACHE: Final = Path("~/.cache/moiety-peers")
"""Folder of other systems' environments unless a command names another."""
_LONGEST_DELAY_MS: Final = 5000
Parameters = Annotated[int, typer.Option(min=1, help="D, the number of shared parameters.")]
Sites = Annotated[int, typer.Option(min=3, help="N, the number of contributors besides the requester.")]
Repeats = Annotated[int, typer.Option(min=1, help="Of which median and quartiles are shown.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", callback=writable, help="Write the figures there.")
]
Folder = Annotated[Path | None, typer.Option(callback=writable_folder, help="Where files lie while it runs.")]


def _end_on_sigterm() -> None:
    """Leave through every ``finally``, so that no process stays behind."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


app = typer.Typer(help="Measure what a round costs.", no_args_is_help=True, callback=_end_on_sigterm)


def _finish(result: Benchmark, text: str, json_file: Path | None) -> None:
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(text)


@app.command("round")
def one_round(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    json_file: JsonFile = None,
    folder: Folder = None,
    tags: Annotated[bool, typer.Option("--tags", help="Of a study whose sums have tags.")] = False,
    narrow: Annotated[bool, typer.Option("--ring-48", help="Of a study whose shares are modulo 2^48.")] = False,
) -> None:
    """Measure one whole round over real processes, after a warm-up round."""
    from harness.bench.round import benchmark_round, round_text

    result = benchmark_round(parameters, sites, folder, tags=tags, ring_bits=48 if narrow else 64)
    _finish(result, round_text(result), json_file)


@app.command("latency")
def latency(
    json_file: JsonFile = None,
    delays: Annotated[str, typer.Option(help="Milliseconds that a request and its answer take, several.")] = "0,20,100",
) -> None:
    """Measure seconds from lock to release of a small study over real processes, and count the network round trips
    that a round waits for.
    """
    from harness.bench.latency import benchmark_latency, latency_text

    try:
        delays_ms = tuple(float(one) for one in delays.split(","))
    except ValueError:
        raise typer.BadParameter("take numbers of milliseconds, such as 0,20,100", param_hint="--delays") from None
    if not all(0 <= one <= _LONGEST_DELAY_MS for one in delays_ms):
        raise typer.BadParameter(f"each from 0 to {_LONGEST_DELAY_MS}", param_hint="--delays")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    result = benchmark_latency(delays_ms)
    _finish(result, latency_text(result), json_file)


@app.command("peers")
def peers(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Measured of each system.")] = 2,
    only: Annotated[list[str] | None, typer.Option(help="Of these systems alone.")] = None,
    cache: Annotated[Path, typer.Option(help="Where environments of other systems are kept.")] = DEFAULT_CACHE,
    json_file: JsonFile = None,
) -> None:
    """Measure whole rounds of Flower, NVFlare and ours, with real processes."""
    from harness.bench.peer_systems import Asked
    from harness.bench.peers import benchmark_peers, peers_text

    result = benchmark_peers(Asked(parameters, sites, rounds), cache, only or (), typer.echo)
    _finish(result, peers_text(result), json_file)


@app.command("ckks")
def ckks(parameters: Parameters = 10**6, sites: Sites = 10, json_file: JsonFile = None, folder: Folder = None) -> None:
    """Measure the CKKS path and a round on shares, in one run."""
    from harness.bench.ckks import benchmark_ckks, ckks_text

    result = benchmark_ckks(parameters, sites, folder)
    _finish(result, ckks_text(result), json_file)


@app.command("idle")
def idle(
    past_studies: Annotated[int, typer.Option(min=0, help="Studies that ended before the agent starts.")] = 9,
    seconds: Annotated[float, typer.Option(min=10, help="In which exchanges are counted.")] = 120.0,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """Measure what an agent without a study sends, receives and stores in a day."""
    from harness.bench.idle import benchmark_idle, idle_text

    result = benchmark_idle(past_studies, seconds, folder)
    _finish(result, idle_text(result), json_file)


@app.command("load")
def load(
    sites: Annotated[int, typer.Option(min=3, help="Contributors besides the requester.")] = 20,
    parameters: Parameters = 10**5,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    processes: Annotated[int, typer.Option(min=1, help="Of agents; the requester's has one of its own.")] = 2,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """Run many sites' agents, without training, for the rounds of one study: errors, times, what servers need, and
    what grows from round to round.
    """
    from harness.bench.load import benchmark_load, load_text

    result = benchmark_load(parameters, sites, rounds, processes, typer.echo, folder)
    _finish(result, load_text(result), json_file)


@app.command("shards")
def shards(
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = "1,2,4",
    parameters: Parameters = 10**8,
    shares: Annotated[int, typer.Option(min=2, help="Contributions; every second one a seed.")] = 3,
    range_parameters: Annotated[int, typer.Option(min=2**15, help="Coordinates of one task.")] = 2**22,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """Measure one side's sketches and sum by ranges, over a Ray cluster of this machine."""
    from harness.bench.shards import benchmark_shards, shards_section

    counts = [int(one) for one in workers.split(",") if one.strip().isdigit() and int(one) > 0]
    if not counts:
        raise typer.BadParameter(f"--workers {workers}: give numbers above 0, such as 1,2,4")
    result = benchmark_shards(parameters, shares, counts, range_parameters, folder)
    _finish(result, shards_section(result), json_file)


@app.command("tags")
def tags(parameters: Parameters = 10**6, repeats: Repeats = 15, json_file: JsonFile = None) -> None:
    """Measure what tags cost a site: while its vector is split, and while a sum is opened."""
    from harness.bench.tags import benchmark_tags, tags_text

    result = benchmark_tags(parameters, repeats)
    _finish(result, tags_text(result), json_file)


@app.command("ring")
def ring(
    parameters: Annotated[int, typer.Option(min=65_536, help="D, rounded down to whole pieces of 65,536.")] = 10**6,
    repeats: Repeats = 9,
    json_file: JsonFile = None,
) -> None:
    """Measure the ring of 48 bits beside that of 64 for each party, and how often lifting a sketch errs."""
    from harness.bench.ring import benchmark_ring, ring_text

    result = benchmark_ring(parameters, repeats)
    _finish(result, ring_text(result), json_file)


@app.command("report")
def report(
    results: Annotated[Path, typer.Option(help="The folder of JSON files.")] = Path("docs/benchmarks"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/benchmarks.md"),
) -> None:
    """Write the page of all figures from the JSON files, and its charts beside them."""
    from harness.bench.report import charts_of, page_of

    rewrite(out, page_of(results))
    for name, chart in charts_of(results).items():
        rewrite(results / name, chart)
    typer.echo(f"wrote {out}")
