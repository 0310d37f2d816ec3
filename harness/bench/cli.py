"""``moiety bench``: what a round costs, what others cost, and the page that says so."""

from __future__ import annotations

import json
import logging
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import structlog
import typer

from harness.bench.against import DEFAULT_CACHE
from harness.bench.load.commands import endurance, load, waiting
from harness.bench.results import RoundBenchmark, write_result
from host.placed_files import rewrite, writable, writable_folder

app = typer.Typer(help="Measure what a round costs.", no_args_is_help=True)
app.command("load")(load)
app.command("waiting")(waiting)
app.command("endurance")(endurance)

_LONGEST_DELAY_MS: Final = 5000
Parameters = Annotated[int, typer.Option(min=1, help="D, the number of shared parameters.")]
Sites = Annotated[int, typer.Option(min=3, help="N, the number of contributors besides the requester.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", callback=writable, help="Write the figures there.")
]


@app.command("round")
def one_round(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    json_file: JsonFile = None,
    folder: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Where the processes keep their files while it runs.")
    ] = None,
    tags: Annotated[bool, typer.Option("--tags", help="Of a study whose sums have tags.")] = False,
    narrow: Annotated[bool, typer.Option("--ring-48", help="Of a study whose shares are modulo 2^48.")] = False,
) -> None:
    """One whole round over real processes, after a warm-up round."""
    from harness.bench.round import benchmark_round

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_round(parameters, sites, folder, tags=tags, ring_bits=48 if narrow else 64)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(round_text(result))


def round_text(result: RoundBenchmark) -> str:
    """The figures, one a line."""
    cpu = result.cpu_ns_per_parameter_contributor
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in result.seconds_by_phase.items())
    return "\n".join(
        (
            f"{result.parameters:,} parameters, {result.sites} contributors and the requester, {result.machine}",
            f"seconds: {result.seconds:.2f} ({phases})",
            f"bytes per parameter: up {result.bytes_up_per_parameter:.3f}, down {result.bytes_down_per_parameter:.3f}",
            f"bytes between the servers: {result.bytes_between_servers_per_contributor:,.0f} a contributor, "
            f"{result.bytes_between_servers_per_parameter:.3f} a parameter",
            f"servers' CPU, ns per parameter and contributor: distances {cpu.distances:.1f}, sum {cpu.sum:.2f}, "
            f"ingest {cpu.ingest:.1f}, output {cpu.output:.1f}{f', tags {cpu.tags:.2f}' if result.tags else ''}",
            f"an agent's CPU, ns per parameter: {result.agent_cpu_ns_per_parameter:.1f}",
            f"numpy's plain average, ns per parameter: {result.plain_fedavg_cpu_ns_per_parameter:.1f}",
            f"peak memory, MB: A {result.server_peak_rss_mb.a:.0f} (idle {result.server_idle_rss_mb.a:.0f}), "
            f"B {result.server_peak_rss_mb.b:.0f} (idle {result.server_idle_rss_mb.b:.0f}), "
            f"agent {result.agent_peak_rss_mb:.0f} (idle {result.agent_idle_rss_mb:.0f})",
            f"upload: {result.upload_gb_per_s:.2f} GB/s",
            f"largest difference to numpy's average: {result.max_abs_difference_to_plain:.2g}",
        )
    )


@app.command("latency")
def latency(
    json_file: JsonFile = None,
    delays: Annotated[str, typer.Option(help="Milliseconds that a request and its answer take, several.")] = "0,20,100",
) -> None:
    """From lock to release: ten contributors, twenty parameters, a whole study over real processes; and what a round
    waits for where the network takes its time, counted in round trips.
    """
    from harness.bench.latency.run import benchmark_latency, latency_text

    signal.signal(signal.SIGTERM, _end)
    try:
        delays_ms = tuple(float(one) for one in delays.split(","))
    except ValueError:
        raise typer.BadParameter("take numbers of milliseconds, such as 0,20,100", param_hint="--delays") from None
    if not all(0 <= one <= _LONGEST_DELAY_MS for one in delays_ms):
        raise typer.BadParameter(f"each from 0 to {_LONGEST_DELAY_MS}", param_hint="--delays")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    result = benchmark_latency(delays_ms)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(latency_text(result))


@app.command("peers")
def peers(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    rounds: Annotated[int, typer.Option(min=0, help="Measured of each system; 0 leaves whole rounds out.")] = 2,
    only: Annotated[list[str] | None, typer.Option(help="Whole rounds of these systems alone.")] = None,
    without_libraries: Annotated[bool, typer.Option("--without-libraries", help="Whole rounds alone.")] = False,
    cache: Annotated[Path, typer.Option(help="Where environments of other systems are kept.")] = DEFAULT_CACHE,
    json_file: JsonFile = None,
) -> None:
    """Other libraries on the same vectors, and whole rounds of Flower, NVFlare and ours with real processes."""
    from harness.bench.against.peers import benchmark_peers, peers_text
    from harness.bench.against.whole.compare import benchmark_rounds, whole_rounds
    from harness.bench.against.whole.page import whole_rounds_lines
    from harness.bench.against.whole.taken import Asked

    signal.signal(signal.SIGTERM, _end)
    asked = Asked(parameters, sites, rounds)
    if without_libraries:
        result = benchmark_rounds(asked, cache, only or (), typer.echo)
    else:
        result = benchmark_peers(parameters, sites)
        found = whole_rounds(asked, cache, only or (), typer.echo) if rounds else ()
        command = f"{result.command} --rounds {rounds}"
        result = result.model_copy(update={"rounds": found, "command": command})
    if json_file is not None:
        write_result(result, json_file)
    typer.echo("\n".join([peers_text(result), *whole_rounds_lines(result.rounds)]))


@app.command("ckks")
def ckks(
    parameters: Parameters = 10**6,
    sites: Sites = 10,
    json_file: JsonFile = None,
    folder: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Where contributions lie while it runs.")
    ] = None,
) -> None:
    """The CKKS path, common CKKS parameters and a round on shares, in one run."""
    from harness.bench.ckks.results import ckks_text
    from harness.bench.ckks.run import benchmark_ckks

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_ckks(parameters, sites, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(ckks_text(result))


@app.command("envelopes")
def envelopes(
    sites: Sites = 10,
    rounds: Annotated[int, typer.Option(min=1, help="In which control requests are counted.")] = 10,
    requests: Annotated[int, typer.Option(min=1, help="Asked one after the other, of either kind, a repeat.")] = 50,
    repeats: Annotated[int, typer.Option(min=1, help="Of which median and quartiles are shown.")] = 15,
    json_file: JsonFile = None,
    folder: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Where the processes keep their files while it runs.")
    ] = None,
) -> None:
    """What signing and sealing add to a request, and to a round by the requests that agents make."""
    from harness.bench.envelope_results import envelopes_text
    from harness.bench.envelopes import benchmark_envelopes

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_envelopes(sites, rounds, requests, repeats, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(envelopes_text(result))


@app.command("idle")
def idle(
    past_studies: Annotated[int, typer.Option(min=0, help="Studies that ended before the agent starts.")] = 9,
    seconds: Annotated[float, typer.Option(min=10, help="In which exchanges are counted.")] = 120.0,
    json_file: JsonFile = None,
    folder: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Where the processes keep their files while it runs.")
    ] = None,
) -> None:
    """What an agent without a study sends, receives and notes in a day."""
    from harness.bench.idle import benchmark_idle, idle_text

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_idle(past_studies, seconds, folder)
    if json_file is not None:
        rewrite(json_file, json.dumps(asdict(result), indent=1) + "\n")
    typer.echo(idle_text(result))


@app.command("tags")
def tags(
    parameters: Parameters = 10**6,
    repeats: Annotated[int, typer.Option(min=1, help="Of which median and quartiles are shown.")] = 15,
    json_file: JsonFile = None,
) -> None:
    """What tags cost at a site: while its vector is split, and while a sum is opened."""
    from harness.bench.tags.run import benchmark_tags, tags_text

    result = benchmark_tags(parameters, repeats)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(tags_text(result))


@app.command("shards")
def shards(
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = "1,2,4",
    parameters: Parameters = 10**8,
    shares: Annotated[int, typer.Option(min=2, help="Contributions; every second one a seed.")] = 3,
    range_parameters: Annotated[int, typer.Option(min=2**15, help="Coordinates of one task.")] = 2**22,
    json_file: JsonFile = None,
    folder: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Where shares lie while it runs.")
    ] = None,
) -> None:
    """One side's sketches and sum by ranges, over a Ray cluster of this machine of so many workers."""
    from harness.bench.sharded.results import shards_section
    from harness.bench.sharded.run import benchmark_shards

    signal.signal(signal.SIGTERM, _end)
    counts = [int(one) for one in workers.split(",") if one.strip().isdigit() and int(one) > 0]
    if not counts:
        raise typer.BadParameter(f"--workers {workers}: give numbers above 0, such as 1,2,4")
    result = benchmark_shards(parameters, shares, counts, range_parameters, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(shards_section(result))


@app.command("ring")
def ring(
    parameters: Annotated[int, typer.Option(min=65_536, help="D, rounded down to whole pieces of 65,536.")] = 10**6,
    repeats: Annotated[int, typer.Option(min=1, help="Of which median and quartiles are shown.")] = 9,
    json_file: JsonFile = None,
) -> None:
    """What a ring of 48 bits would cost each party beside the ring of today, and how often lifting a sketch errs."""
    from harness.bench.ring.run import benchmark_ring, ring_text

    result = benchmark_ring(parameters, repeats)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(ring_text(result))


@app.command("simulate")
def simulate(
    sites: Annotated[int, typer.Option(min=4, help="The requester and its contributors.")] = 4,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    rows: Annotated[int, typer.Option(min=1, help="Training examples at each site.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Of which the medians are shown.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Plain simulation of logistic regression beside a hand-written PyTorch loop of the same steps."""
    from harness.bench.simulated.compare import benchmark_simulation, simulate_text

    result = benchmark_simulation(sites, rounds, rows, batch_size, repeats)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(simulate_text(result))


@app.command("noise")
def noise(
    parameters: Parameters = 10**6,
    examples: Annotated[int, typer.Option(min=1, help="Records whose gradients are clipped one by one.")] = 600,
    json_file: JsonFile = None,
) -> None:
    """What differential privacy costs a site: drawing noise, clipping gradients record by record."""
    from harness.bench.simulated.noise import benchmark_noise, noise_text

    cost = benchmark_noise(parameters, examples)
    if json_file is not None:
        rewrite(json_file, json.dumps(asdict(cost)) + "\n")
    typer.echo(noise_text(cost))


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


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
