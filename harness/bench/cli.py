"""``moiety lab bench``: what a round costs, and what others cost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from harness.cli import end_on_sigterm
from host.output_files import writable, writable_folder

if TYPE_CHECKING:
    from harness.bench.meter import Benchmark

DEFAULT_CACHE: Final = Path("~/.cache/moiety-peers")
"""Folder of other systems' environments unless a command names another."""
_LONGEST_DELAY_MS: Final = 5000
_LEAST_OF_A_RING: Final = 65_536
Parameters = Annotated[int, typer.Option(min=1, help="D, the number of shared parameters.")]
Sites = Annotated[int, typer.Option(min=3, help="N, the number of contributors besides the requester.")]
OutFile = Annotated[Path | None, typer.Option(callback=writable, help="Write the figures there.")]
Folder = Annotated[Path | None, typer.Option(callback=writable_folder, help="Where files lie while it runs.")]


app = typer.Typer(help="Measure what a round costs.", no_args_is_help=True, callback=end_on_sigterm)


def _finish(result: Benchmark, out: Path | None) -> None:
    if out is not None:
        from harness.bench.meter import write_result

        write_result(result, out)
    typer.echo(f"{result.section()}\n{result.machine}")


@app.command("round")
def one_round(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    out: OutFile = None,
    folder: Folder = None,
    tags: Annotated[bool, typer.Option("--tags", help="Of a study whose sums have tags.")] = False,
    narrow: Annotated[bool, typer.Option("--ring-48", help="Of a study whose shares are modulo 2^48.")] = False,
) -> None:
    """Measure one whole round over real processes, after a warm-up.

    Example: moiety lab bench round --parameters 100000 --sites 10
    """
    from harness.bench.round import benchmark_round

    result = benchmark_round(parameters, sites, folder, tags=tags, ring_bits=48 if narrow else 64)
    _finish(result, out)


@app.command("latency")
def latency(
    out: OutFile = None,
    delays: Annotated[str, typer.Option(help="Milliseconds that a request and its answer take, several.")] = "0,20,100",
) -> None:
    """Measure seconds from lock to release, and count round trips.

    A small study over real processes, with added delays.

    Example: moiety lab bench latency --delays 0,20,100
    """
    import structlog

    from harness.bench.latency import benchmark_latency

    try:
        delays_ms = tuple(float(one) for one in delays.split(","))
    except ValueError:
        raise typer.BadParameter("take numbers of milliseconds, such as 0,20,100", param_hint="--delays") from None
    if not all(0 <= one <= _LONGEST_DELAY_MS for one in delays_ms):
        raise typer.BadParameter(f"each from 0 to {_LONGEST_DELAY_MS}", param_hint="--delays")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    result = benchmark_latency(delays_ms)
    _finish(result, out)


@app.command("peers")
def peers(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Measured of each system.")] = 2,
    only: Annotated[list[str] | None, typer.Option(help="Of these systems alone.")] = None,
    cache: Annotated[Path, typer.Option(help="Where environments of other systems are kept.")] = DEFAULT_CACHE,
    out: OutFile = None,
) -> None:
    """Measure whole rounds of Flower, NVFlare and ours.

    Example: moiety lab bench peers --parameters 1000000 --sites 10
    """
    from harness.bench.peer_systems import Asked
    from harness.bench.peers import benchmark_peers

    result = benchmark_peers(Asked(parameters, sites, rounds), cache, only or (), typer.echo)
    _finish(result, out)


@app.command("ckks")
def ckks(parameters: Parameters = 10**6, sites: Sites = 10, out: OutFile = None, folder: Folder = None) -> None:
    """Measure the CKKS path and a round on shares, in one run.

    Example: moiety lab bench ckks --parameters 1000000 --sites 10
    """
    from harness.bench.ckks import benchmark_ckks

    result = benchmark_ckks(parameters, sites, folder)
    _finish(result, out)


@app.command("idle")
def idle(
    past_studies: Annotated[int, typer.Option(min=0, help="Studies that ended before the agent starts.")] = 9,
    seconds: Annotated[float, typer.Option(min=10, help="In which exchanges are counted.")] = 120.0,
    out: OutFile = None,
    folder: Folder = None,
) -> None:
    """Measure a day of an agent without a study: bytes and storage.

    Example: moiety lab bench idle --past-studies 9
    """
    from harness.bench.latency import benchmark_idle

    result = benchmark_idle(past_studies, seconds, folder)
    _finish(result, out)


@app.command("load")
def load(
    sites: Annotated[int, typer.Option(min=3, help="Contributors besides the requester.")] = 20,
    parameters: Parameters = 10**5,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    processes: Annotated[int, typer.Option(min=1, help="Of agents; the requester's has one of its own.")] = 2,
    out: OutFile = None,
    folder: Folder = None,
) -> None:
    """Measure servers under many agents that do not train.

    Errors, times, what servers need, and what grows from round to round.

    Example: moiety lab bench load --sites 20 --rounds 20
    """
    from harness.bench.load import benchmark_load

    result = benchmark_load(parameters, sites, rounds, processes, typer.echo, folder)
    _finish(result, out)


@app.command("shards")
def shards(
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = "1,2,4",
    parameters: Parameters = 10**8,
    shares: Annotated[int, typer.Option(min=2, help="Contributions; every second one a seed.")] = 3,
    range_parameters: Annotated[int, typer.Option(min=2**15, help="Coordinates of one task.")] = 2**22,
    out: OutFile = None,
    folder: Folder = None,
) -> None:
    """Measure one side's sketches and sum, over a Ray cluster here.

    Example: moiety lab bench shards --workers 1,2
    """
    from harness.bench.shards import benchmark_shards

    counts = [int(one) for one in workers.split(",") if one.strip().isdigit() and int(one) > 0]
    if not counts:
        raise typer.BadParameter(f"--workers {workers}: give numbers above 0, such as 1,2,4")
    result = benchmark_shards(parameters, shares, counts, range_parameters, folder)
    _finish(result, out)


@app.command("variant")
def variant(
    kind: Annotated[Literal["tags", "ring"], typer.Argument(help="tags of sums, or the ring of 48 bits.")],
    parameters: Annotated[int, typer.Option(min=1, help="D; ring rounds it down to pieces of 65,536.")] = 10**6,
    repeats: Annotated[int, typer.Option(min=1, help="Of which median and quartiles are shown.")] = 15,
    out: OutFile = None,
) -> None:
    """Measure what tags, or the ring of 48 bits, cost each party.

    tags: what they add where a site splits, and opens a sum. ring: a study's work beside that in the ring of 64 bits,
    and how often lifting a sketch errs.

    Example: moiety lab bench variant tags --parameters 1000000
    """
    from harness.bench.ring import benchmark_ring
    from harness.bench.tags import benchmark_tags

    if kind == "tags":
        tags = benchmark_tags(parameters, repeats)
        _finish(tags, out)
    elif parameters < _LEAST_OF_A_RING:
        raise typer.BadParameter(f"the ring is measured on {_LEAST_OF_A_RING} or more", param_hint="--parameters")
    else:
        ring = benchmark_ring(parameters, repeats)
        _finish(ring, out)
