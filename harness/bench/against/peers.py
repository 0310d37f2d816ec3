"""Other libraries on the same vectors in the same run: CrypTen's distances, TenSEAL's encrypted sums.

What is compared is what two servers compute: squared distances of N contributors to the requester, and their sum.
Ours runs through the protocol's own functions, both servers in one process, correlations by OT included; neither
HTTP nor disks are counted on any side.
"""

from __future__ import annotations

import importlib
import math
import secrets
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.bench import probe
from harness.bench.against.peer_crypten import CryptenFigure
from harness.bench.results import PeerFigure, PeersBenchmark
from harness.bench.vectors import Vector, numerator_of, parameters_for, plain_average, update_of
from harness.versions import versions
from harness.warm import warm
from protocol.arithmetic.fixed_point import encode_into, scaling_of
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.mpc import measurement
from protocol.mpc.correlation import ot_pair
from protocol.mpc.distance import query
from protocol.mpc.quantity import product_lengths
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import Needs, StudyParameters
from protocol.release import sum_chunk
from protocol.sharing import SeedShare, Share, Side, chunk_source, split

DISTANCES: Final = "squared distances to the requester"
SUM: Final = "sum of the updates"
_CHUNK: Final = 1 << 16
_PROJECT: Final = Path(__file__).resolve().parents[2]
_CKKS_DEGREE: Final = 8192
_CKKS_BITS: Final = (60, 40, 60)
_CKKS_SCALE: Final = 2.0**40
_SIX_DEVIATIONS: Final = 6.0


def benchmark_peers(dimension: int, sites: int) -> PeersBenchmark:
    """Everything that is installed, one after the other; what is missing is named."""
    warm()
    parameters = parameters_for(dimension, sites + 1)
    distances, sums = _ours(parameters, sites)
    per = dimension * sites
    plain = plain_average(list(range(sites + 1)), parameters).cpu_ns / per
    return PeersBenchmark(
        parameters=dimension,
        sites=sites,
        command=f"moiety bench peers --parameters {dimension} --sites {sites}",
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        figures=(
            _figure("moiety", None, DISTANCES, distances / per, None, "both servers, OT and range checks included"),
            _crypten(dimension, sites, distances / per),
            _figure("moiety", None, SUM, sums / per, None, "both servers, seeds expanded"),
            _tenseal(dimension, sites, sums / per),
            _figure("numpy", version("numpy"), SUM, plain, sums / per, "no protection at all"),
        ),
        versions={one.name: one.version for one in versions()},
    )


def peers_text(result: PeersBenchmark) -> str:
    """One line a figure; whole rounds are in harness.bench.against.whole.page."""
    lines = [f"{result.parameters:,} parameters, {result.sites} contributors, {result.machine}"]
    for one in result.figures:
        name = one.name if one.version is None else f"{one.name} {one.version}"
        if one.cpu_ns_per_parameter_contributor is None:
            lines.append(f"{one.task}: {name}: {one.note}")
            continue
        ratio = "" if one.times_ours is None else f", {one.times_ours:.2g} times ours"
        cost = f"{one.cpu_ns_per_parameter_contributor:.3g} ns CPU per parameter and contributor"
        lines.append(f"{one.task}: {name}: {cost}{ratio} ({one.note})")
    return "\n".join(lines)


# --- ours -------------------------------------------------------------------------------------------------------------


def _ours(parameters: StudyParameters, sites: int) -> tuple[int, int]:
    """CPU nanoseconds of both servers for the distances and for the sum."""
    grid = parameters.weight_grid
    numerators = [numerator_of(place, grid) for place in range(sites + 1)]
    encoded = [_encoded(update_of(p, parameters.dimension), n, parameters) for p, n in enumerate(numerators)]
    shares: dict[Side, list[Share]] = {side: [] for side in Side}
    for place, x in enumerate(encoded):
        seed, vector = split(x, secrets.token_bytes(32))
        seed_at = Side.B if place % 2 == 0 else Side.A
        shares[seed_at].append(SeedShare(seed.seed, seed.length))
        shares[seed_at.other].append(vector)
    challenge = secrets.token_bytes(32)
    own = sketch_vector(challenge, encoded[0], parameters)
    queries = [query(own, numerator, grid) for numerator in numerators[1:]]
    begun = time.process_time_ns()
    opened = _distances(shares, queries, numerators, challenge, parameters)
    distances_ns = time.process_time_ns() - begun
    _check(opened, parameters)
    begun = time.process_time_ns()
    for side in Side:
        sources = [chunk_source(share) for share in shares[side]]
        for start in range(0, parameters.dimension, _CHUNK):
            sum_chunk(sources, start, min(start + _CHUNK, parameters.dimension))
    return distances_ns, time.process_time_ns() - begun


def _encoded(update: Vector, numerator: int, parameters: StudyParameters) -> Ring:
    scaling = scaling_of(update, [("all", update.size)], parameters, numerator / parameters.weight_grid)
    out = np.empty(update.size, dtype=np.uint64)
    encode_into(out, update, scaling, secrets.token_bytes(32), 0)
    return out


def _distances(
    shares: dict[Side, list[Share]],
    queries: list[Ring],
    numerators: list[int],
    challenge: bytes,
    parameters: StudyParameters,
) -> list[float]:
    """Correlations, sketches, products, openings: what both servers and the opening requester do."""
    names = [f"site-{place}" for place in range(1, len(numerators))]
    half_a, half_b = ot_pair(
        [product_lengths(Needs.DISTANCES, 1, is_requester=False, parameters=parameters)] * len(names),
        secrets.token_bytes(32),
        secrets.token_bytes(32),
    )
    halves, operands = {Side.A: half_a, Side.B: half_b}, {}
    zeros = [np.zeros_like(one) for one in queries]
    for side in Side:
        sketches = sketch_shares(challenge, [chunk_source(share) for share in shares[side][1:]], parameters)
        asked = queries if side is Side.A else zeros
        given = [measurement.SiteSketch(n, s, q) for n, s, q in zip(names, sketches, asked, strict=True)]
        operands[side] = measurement.prepare_all(side, challenge, given, parameters)
    opened = []
    for i, numerator in enumerate(numerators[1:]):
        masked = {side: measurement.masked(operands[side][i], halves[side][i]) for side in Side}
        part = {
            side: measurement.opening_share(
                side, operands[side][i], masked[side.other], halves[side][i], challenge, "bench", parameters
            )
            for side in Side
        }
        site = measurement.open_site(part[Side.A], part[Side.B], numerator, parameters)
        opened.append(math.nan if site.distance is None else site.distance)
    return opened


def _check(opened: list[float], parameters: StudyParameters) -> None:
    """Raises: ProtocolViolation, when a distance is off by more than six of the sketch's standard deviations"""
    first = _clipped(update_of(0, parameters.dimension))
    spread = 0.0 if parameters.exact_distances else math.sqrt(1 / (2 * parameters.sketch_length))
    rounding = 4 * math.sqrt(parameters.dimension) / parameters.scale
    for place, found in enumerate(opened, start=1):
        plain = float(np.linalg.norm(_clipped(update_of(place, parameters.dimension)) - first))
        if not abs(found - plain) <= _SIX_DEVIATIONS * spread * plain + rounding:
            raise ProtocolViolation(f"benchmark: site {place} is {plain:g} away, {found:g} was opened")


def _clipped(update: Vector) -> Vector:
    norm = np.float32(np.linalg.norm(update))
    return update / norm if norm > 1 else update


# --- the others -------------------------------------------------------------------------------------------------------


def _figure(name: str, found: str | None, task: str, cost: float, ours: float | None, note: str) -> PeerFigure:
    return PeerFigure(
        name=name,
        version=found,
        task=task,
        cpu_ns_per_parameter_contributor=cost,
        times_ours=None if ours is None else cost / ours,
        note=note,
    )


def _missing(name: str, task: str, note: str) -> PeerFigure:
    return PeerFigure(
        name=name, version=None, task=task, cpu_ns_per_parameter_contributor=None, times_ours=None, note=note
    )


def _version_of(name: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return version(name) if find_spec(name) is not None else None
    except PackageNotFoundError:
        return None


def _crypten(dimension: int, sites: int, ours: float) -> PeerFigure:
    """Exact distances by CrypTen's own arithmetic, with triples from its trusted first party, that is a dealer."""
    found = _version_of("crypten")
    if found is None:
        return _missing("crypten", DISTANCES, "not installed (pip install crypten), not compared")
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "harness.bench.against.peer_crypten", str(dimension), str(sites)],
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _missing("crypten", DISTANCES, f"{found} is installed but does not run here: {last}")
    figure = CryptenFigure.model_validate_json(done.stdout.strip().splitlines()[-1])
    note = f"with a dealer, no range check; largest relative error {figure.largest_relative_error:.1e}"
    return _figure("crypten", found, DISTANCES, figure.cpu_ns / (dimension * sites), ours, note)


def _tenseal(dimension: int, sites: int, ours: float) -> PeerFigure:
    """One server adding CKKS ciphertexts; packing, encrypting and decrypting are the sites' work, not counted."""
    found = _version_of("tenseal")
    if found is None:
        return _missing("tenseal", SUM, "not installed (pip install tenseal), not compared")
    tenseal: Any = importlib.import_module("tenseal")
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=_CKKS_DEGREE, coeff_mod_bit_sizes=list(_CKKS_BITS)
    )
    context.global_scale = _CKKS_SCALE
    slots, cpu_ns, largest = _CKKS_DEGREE // 2, 0, 0.0
    vectors = [update_of(place, dimension) for place in range(1, sites + 1)]
    for start in range(0, dimension, slots):
        pieces = [vector[start : start + slots] for vector in vectors]
        encrypted = [tenseal.ckks_vector(context, piece.astype(np.float64)) for piece in pieces]
        total = encrypted[0].copy()
        begun = time.process_time_ns()
        for one in encrypted[1:]:
            total += one
        cpu_ns += time.process_time_ns() - begun
        if start == 0:
            largest = float(np.max(np.abs(np.array(total.decrypt()) - np.sum(pieces, axis=0))))
    note = f"additions in memory alone; one server, no distances; largest error {largest:.1e}"
    return _figure("tenseal", found, SUM, cpu_ns / (dimension * sites), ours, note)
