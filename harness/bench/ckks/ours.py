"""The CKKS path of this project on the benchmark's vectors: the code that sites and the server run.

Contributions lie in files, as at a server; parsing and adding happen in the worker process that a server uses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.bench import probe
from harness.bench.ckks.results import CkksFigures, CkksTimes
from harness.bench.ckks.vectors import errors_of, weighted_update
from harness.bench.vectors import CLIP_NORM
from host.memory_file import MemoryFile
from protocol.ckks.check import SiteChecks, SumChecks
from protocol.ckks.cipher import Decryptor, Encryptor
from protocol.ckks.ciphertext import BodyHeader, Kind
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import KEY_SEED_BYTES, Scheme, SecretKey
from protocol.ckks.update import average, body_header, contribution
from protocol.errors import ProtocolViolation
from protocol.wire.channel.sealing import sealed_length
from protocol.wire.messages import ShareKind
from servers.ckks.process import CkksProcess
from servers.rounds.ciphertexts import ContributionCheck, stored_chunks, summed_body
from servers.store.files.chunk_tags import ChunkTags, Tagger, layout_of

LARGEST_ERROR: Final = 1e-5
"""What the whole average may be off by, in units of the clip norm."""
_PIECE_BYTES: Final = 2**18
_STUDY: Final = "00" * 32
_ROUND: Final = "01" * 32


@dataclass
class _Spent:
    """CPU time of this process and its worker, by step."""

    process: CkksProcess
    ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = self._now()
        yield
        self.ns[name] = self.ns.get(name, 0) + self._now() - begun

    def _now(self) -> int:
        worker = 0 if self.process.pid is None else probe.cpu_ns(self.process.pid)
        return time.process_time_ns() + worker


@dataclass(frozen=True)
class _Place:
    """Where bodies lie and what they begin with."""

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
            probe.reset_peak(pid)
        spent = _Spent(process)
        for site in range(sites):
            _contribute(place, site, sites, spent)
        with spent.step("add"):
            _sum(place, sites, process)
        with spent.step("decrypt"):
            opened = _opened(place, sites)
        own_mb, worker_mb = probe.peak_mb(os.getpid()), probe.peak_mb(process.pid)
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
