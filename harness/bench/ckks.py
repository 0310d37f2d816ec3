"""``moiety lab bench ckks``: the CKKS path on the benchmark's vectors, with the code that sites and the server run.

Updates, weights and number of vectors (N contributors and the requester) are those of ``moiety lab bench round``, which
runs beside it. Contributions lie in files, as at a server; parsing and adding happen in the worker process that a
server uses. It runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.bench import meter
from harness.bench.meter import Benchmark, Figures, RoundBenchmark, facts, scratch, table
from harness.bench.synthetic import CLIP_NORM, Vector, numerator_of, parameters_for, update_of
from host.files import MemoryFile
from protocol.arithmetic.fixed_point import scaling_of
from protocol.arithmetic.kernels import Scaling
from protocol.channel.sealing import sealed_length
from protocol.ckks.ciphertext import BodyHeader, CkksParameters, Kind
from protocol.ckks.scheme import KEY_SEED_BYTES, Decryptor, Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import ProtocolViolation
from protocol.messages.control import ShareKind
from servers.ckks.process import CkksProcess, ContributionCheck, summed_body
from servers.rounds.ciphertexts import stored_chunks
from servers.store.chunk_tags import ChunkTags, Tagger, layout_of


class CkksTimes(Figures):
    """CPU nanoseconds of all processes, a parameter.

    ``encrypt``: from the update to the body, at one site. ``check``: parsing one contribution as it comes, at the
    server; ``add``: parsing and adding one, when the round is summed. ``decrypt``: from the sum to the average.
    """

    encrypt: float
    check: float
    add: float
    decrypt: float


class CkksFigures(Figures):
    """Our path on the benchmark's vectors.

    Bytes are of the sealed bodies per parameter and site. ``peak_rss_mb`` is of the larger process, ``worker_rss_mb``
    of the one that parses. Errors are of the opened average, in units of the clip norm: ``max_error`` of the worst
    coordinate, ``norm_error`` of the whole vector.
    """

    scheme: str
    ring_degree: int
    modulus_bits: tuple[int, ...]
    scale_bits: int
    bytes_up_per_parameter: float
    bytes_down_per_parameter: float
    ns_per_parameter: CkksTimes
    peak_rss_mb: float
    worker_rss_mb: float
    max_error: float
    norm_error: float


class CkksBenchmark(CkksFigures, Benchmark):
    """Our path and a round of the share path, in one run."""

    TITLE: ClassVar[str] = "Under CKKS: {parameters:,} parameters, {sites} contributors"
    KIND: ClassVar[str] = "ckks"
    parameters: int
    sites: int
    shares: RoundBenchmark = Field(repr=False)

    def section(self) -> str:
        """Our path, and below it what the same costs on shares."""
        one, cpu = self.shares, self.shares.cpu_ns_per_parameter_contributor
        head = ("on shares: bytes up", "down", "an agent's CPU, ns", "both servers', ns", "largest error")
        servers = cpu.ingest + cpu.distances + cpu.sum + cpu.output
        row = (
            f"{one.bytes_up_per_parameter:.2f}",
            f"{one.bytes_down_per_parameter:.2f}",
            f"{one.agent_cpu_ns_per_parameter:.0f}",
            f"{servers:.0f}",
            f"{one.max_abs_difference_to_plain:.1e}",
        )
        return f"{super().section()}\n{table(head, [row])}"


@dataclass(frozen=True)
class WeightedUpdate:
    """The input of one site's encryption."""

    update: Vector
    scaling: Scaling


def weighted_update(place: int, dimension: int, sites: int) -> WeightedUpdate:
    """The update of the site at a place of the roster, with the weight that the other benchmarks give it."""
    parameters = parameters_for(dimension, sites)
    update = update_of(place, dimension)
    weight = numerator_of(place, parameters.weight_grid) / parameters.weight_grid
    return WeightedUpdate(update, scaling_of(update, (("all", dimension),), parameters, weight))


@dataclass(frozen=True)
class Errors:
    """In units of the clip norm."""

    largest: float
    norm: float


def errors_of(opened: NDArray[np.float32], sites: int) -> Errors:
    """The opened average of ``sites`` updates against float64's."""
    total, weights = np.zeros(opened.size), 0.0
    for place in range(sites):
        one = weighted_update(place, opened.size, sites)
        scaling = one.scaling
        total += one.update.astype(np.float64) * scaling.unit * scaling.factor * scaling.weight
        weights += scaling.weight
    off = (total / weights - opened) / CLIP_NORM
    return Errors(float(np.max(np.abs(off))), float(np.linalg.norm(off)))


LARGEST_ERROR: Final = 1e-5
"""Largest error of the whole average, in units of the clip norm."""
_PIECE_BYTES: Final = 2**18
_STUDY: Final = "00" * 32
_ROUND: Final = "01" * 32


@dataclass
class _Spent:
    process: CkksProcess
    ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = self._now()
        yield
        self.ns[name] = self.ns.get(name, 0) + self._now() - begun

    def _now(self) -> int:
        worker = 0 if self.process.pid is None else meter.cpu_ns(self.process.pid)
        return time.process_time_ns() + worker


@dataclass(frozen=True)
class _Place:
    folder: Path
    key: SecretKey
    dimension: int
    tags: dict[int, ChunkTags] = field(default_factory=dict)

    def header(self, kind: Kind) -> BodyHeader:
        return body_header(kind, self.key, self.dimension)

    def contribution(self, site: int) -> Path:
        return self.folder / f"{site}.contribution"

    @property
    def sum(self) -> Path:
        return self.folder / "sum"


def measure_ours(parameters: CkksParameters, dimension: int, sites: int, folder: Path) -> CkksFigures:
    """``sites`` bodies made, checked and stored one by one; then summed and opened.

    Raises: ProtocolViolation, when the opened average is off by more than ``LARGEST_ERROR``
    """
    key = Scheme(parameters).secret_key(os.urandom(KEY_SEED_BYTES), _STUDY)
    place = _Place(folder, key, dimension)
    with CkksProcess(parameters) as process:
        process.fingerprint()
        assert process.pid is not None, "a worker that has answered runs"
        for pid in (os.getpid(), process.pid):
            meter.reset_peak(pid)
        spent = _Spent(process)
        for site in range(sites):
            _contribute(place, site, sites, spent)
        with spent.step("add"):
            _sum(place, sites, process)
        with spent.step("decrypt"):
            opened = _opened(place, sites)
        own_mb, worker_mb = meter.peak_mb(os.getpid()), meter.peak_mb(process.pid)
    return _figures(place, sites, spent.ns, opened, (own_mb, worker_mb))


def _contribute(place: _Place, site: int, sites: int, spent: _Spent) -> None:
    one = weighted_update(site, place.dimension, sites)
    header = place.header(Kind.CONTRIBUTION)
    with spent.step("encrypt"), place.contribution(site).open("wb") as file:
        encryptor, checks = Encryptor(place.key, MemoryFile()), SiteChecks(place.key, _ROUND, str(site))
        for piece in contribution(encryptor, header, one.update, one.scaling, CLIP_NORM, checks):
            file.write(piece)
    with spent.step("check"):
        check = ContributionCheck(spent.process, header.key_id, header.values)
        tagger = Tagger(layout_of(ShareKind.CIPHERTEXT, place.key.scheme.parameters))
        for piece in _pieces(place.contribution(site)):
            check.write(piece)
            tagger.write(piece)
        check.finish()
    size = place.contribution(site).stat().st_size
    layout = layout_of(ShareKind.CIPHERTEXT, place.key.scheme.parameters)
    place.tags[site] = ChunkTags(str(site), size, layout, tagger.finish())


def _sum(place: _Place, sites: int, process: CkksProcess) -> None:
    parameters, header = place.key.scheme.parameters, place.header(Kind.SUM)
    sources = [stored_chunks(place.contribution(i), place.tags[i], parameters, header.values) for i in range(sites)]
    with place.sum.open("wb") as file:
        for piece in summed_body(process, header, sources):
            file.write(piece)


def _opened(place: _Place, sites: int) -> NDArray[np.float32]:
    decryptor = Decryptor(place.key, MemoryFile())
    checks = SumChecks(place.key, _ROUND, [str(site) for site in range(sites)])
    return average(_pieces(place.sum), decryptor, place.header(Kind.SUM), checks, 0.0, CLIP_NORM)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _figures(
    place: _Place, sites: int, ns: dict[str, int], opened: NDArray[np.float32], peaks_mb: tuple[float, float]
) -> CkksFigures:
    errors, parameters, dimension = errors_of(opened, sites), place.key.scheme.parameters, place.dimension
    if not errors.norm < LARGEST_ERROR:
        raise ProtocolViolation(f"benchmark: the opened average is off by {errors.norm:g} of the clip norm")
    return CkksFigures(
        scheme="Moiety's chunks, symmetric, seeded",
        ring_degree=parameters.ring_degree,
        modulus_bits=(parameters.modulus.bit_length(),),
        scale_bits=parameters.scale_bits,
        bytes_up_per_parameter=sealed_length(place.contribution(0).stat().st_size) / dimension,
        bytes_down_per_parameter=sealed_length(place.sum.stat().st_size) / dimension,
        ns_per_parameter=CkksTimes(
            encrypt=ns["encrypt"] / sites / dimension,
            check=ns["check"] / sites / dimension,
            add=ns["add"] / sites / dimension,
            decrypt=ns["decrypt"] / dimension,
        ),
        peak_rss_mb=max(peaks_mb),
        worker_rss_mb=peaks_mb[1],
        max_error=errors.largest,
        norm_error=errors.norm,
    )


def benchmark_ckks(dimension: int, sites: int, folder: Path | None = None) -> CkksBenchmark:
    """Both, one after the other.

    Raises: ConfigurationError, when TenSEAL is missing; ProtocolViolation, when an opened average is off
    """
    from harness.bench.round import benchmark_round  # not in the process whose memory is measured

    Scheme(CkksParameters())
    with scratch(folder) as place, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        ours = pool.submit(measure_ours, CkksParameters(), dimension, sites + 1, place).result()
    found = facts(f"ckks --parameters {dimension} --sites {sites}")
    found["versions"] |= {"tenseal": version("tenseal")}
    return CkksBenchmark(
        **dict(ours), **found, parameters=dimension, sites=sites, shares=benchmark_round(dimension, sites, folder)
    )
