"""``moiety lab bench variant ring``: work in the ring of 48 bits beside that in 64, and how often lifting errs.

Shares of small numbers modulo 2^b are taken to modulo 2^64 by each server alone, which reads its share as a signed
number. For y = a + b modulo 2^bits with a uniform, a + b is y exactly unless the reading of b leaves
[-2^(bits-1), 2^(bits-1)), which |y| of the 2^bits values of a make it do: so an entry errs with |y| / 2^bits, and a
sketch with at most the sum of its entries' sizes over 2^bits. An error adds or takes 2^bits, which the range check
sees but for 2^-40: the site is left out of that round.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from harness.bench.meter import Benchmark, Figures, Spread, cpu_ns_each, facts, scratch
from harness.bench.synthetic import parameters_for, update_of
from harness.warm import warm
from protocol.arithmetic import kernels
from protocol.arithmetic.fixed_point import element_bytes, encode_into, packed, scaling_of, unpacked
from protocol.arithmetic.ring import Ring, Signed, Usage, expand_into, lifted, to_signed
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import RingBits, StudyParameters

_BLOCKS: Final = 4
_PIECE: Final = 1 << 16
_KEY: Final = bytes(32)
_SIMULATED_BITS: Final = (32, 36, 40)
_NARROW: Final = 48
_BOUND: Final = 2**30
_DIVISOR: Final = 8.0
_TRIALS: Final = 2000
Octets = NDArray[np.uint8]


def sketched(update: Ring, challenge: bytes, parameters: StudyParameters) -> Signed:
    """The entries of one encoded update's sketch. Shapes: uint64[D] -> int64[min(D, k)]"""
    return to_signed(sketch_vector(challenge, update, parameters))


def encoded(update: np.ndarray[tuple[int], np.dtype[np.float32]], parameters: StudyParameters, seed: bytes) -> Ring:
    """Clipped to the study's norm, weight 1."""
    out = np.empty(update.size, dtype=np.uint64)
    encode_into(out, update, scaling_of(update, [("all", update.size)], parameters), seed, 0)
    return out


def lift_errors(entries: Signed, bits: int, trials: int, rng: np.random.Generator) -> tuple[int, float]:
    """In how many of ``trials`` fresh sharings in a ring of ``bits``, each share lifted by itself, any entry is wrong.

    Returns: how many are, and how many should be by the sizes of the entries
    """
    half, whole, erred = 1 << (bits - 1), 1 << bits, 0
    for _ in range(trials):
        a = rng.integers(-half, half, size=entries.size, dtype=np.int64)
        b = (entries - a + half) % whole - half  # as B reads its share, signed
        erred += bool(np.any(a + b != entries))
    return erred, trials * -math.expm1(float(np.sum(np.log1p(-np.abs(entries) / 2.0**bits))))


def most_often(bits: int, parameters: StudyParameters) -> float:
    """The mean over challenges of a sketch's chance to err is at most this, for whatever update of norm E.

    The squares of a sketch's entries have mean 4 ||x||^2 in all, so the sum of k sizes has at most sqrt(k) 2 E.
    """
    norm = parameters.encoded_norm * (1.0 if parameters.exact_distances else math.sqrt(_BLOCKS))
    return math.sqrt(parameters.sketched_length) * norm / 2.0**bits


class RingStage(Figures):
    """CPU nanoseconds per parameter of one stage in either ring, and the second over the first."""

    name: str
    ring_64: Spread
    ring_48: Spread
    ratio: Spread


class RingBenchmark(Benchmark):
    """``errors``: per ring size, sharings, sketches that erred, and how many should have by the entries' sizes."""

    TITLE: ClassVar[str] = "Rings of 64 and 48 bits, CPU ns per parameter"
    parameters: int
    repeats: int
    load: float
    stages: tuple[RingStage, ...]
    errors: tuple[tuple[int, int, int, float], ...]
    error_per_site_and_round: float
    error_at_most: float


@dataclass(frozen=True)
class Stage:
    """The same work in both rings, once over all parameters."""

    name: str
    ring_64: Callable[[], object] = field(repr=False)
    ring_48: Callable[[], object] = field(repr=False)


def benchmark_ring(parameters: int, repeats: int) -> RingBenchmark:
    """Both rings in turns. ``parameters`` is rounded down to whole pieces of 65,536."""
    warm()
    load, _, _ = os.getloadavg()
    dimension = max(1, parameters // _PIECE) * _PIECE
    with scratch() as folder:
        work = _Work(dimension, folder)
        work.check()
        stages = tuple(_timed(stage, repeats, dimension) for stage in work.stages())
    study, rng = parameters_for(dimension, 11), np.random.default_rng(48)
    update = encoded(update_of(1, dimension), study, bytes(32))
    entries = sketched(update, hashlib.sha256(b"ring").digest(), study)
    return RingBenchmark(
        parameters=dimension,
        repeats=repeats,
        **facts(f"variant ring --parameters {parameters} --repeats {repeats}"),
        load=load,
        stages=stages,
        errors=tuple((bits, _TRIALS, *lift_errors(entries, bits, _TRIALS, rng)) for bits in _SIMULATED_BITS),
        error_per_site_and_round=float(np.abs(entries).sum()) / 2.0**_NARROW,
        error_at_most=most_often(_NARROW, study),
    )


class _Work:
    """One site's vector, share and pads in both forms, and what each party does with them, piece by piece."""

    def __init__(self, dimension: int, folder: Path) -> None:
        self._update = update_of(1, dimension)
        self._scaling = scaling_of(self._update, [("all", dimension)], parameters_for(dimension, 11))
        self._file = folder / "share"
        self._pieces = [slice(at, at + _PIECE) for at in range(0, dimension, _PIECE)]
        self._x = np.empty(dimension, dtype=np.uint64)
        self._encode()
        self._words = np.empty(dimension, dtype=np.uint64)
        expand_into(_KEY, Usage.SKETCH, self._words)
        self._share, self._packed = np.empty_like(self._x), np.empty(element_bytes(_NARROW) * dimension, dtype=np.uint8)
        self._total, self._buffer = np.zeros(dimension, dtype=np.uint64), np.empty(_PIECE, dtype=np.uint64)
        self._pad, self._average = np.empty(_PIECE, dtype=np.uint64), np.empty(_PIECE, dtype=np.float32)
        self._buckets = np.zeros(2048, dtype=np.uint64)
        self._split_64()
        self._split_48()

    def stages(self) -> tuple[Stage, ...]:
        wide, narrow = self._wide, self._unpacked
        return (
            Stage("agent: encode and split", self._split_64, self._split_48),
            Stage("agent: seal, hash, write", lambda: self._seal(self._share), lambda: self._seal(self._packed)),
            Stage("agent: open a sum", lambda: self._open(wide, 64), lambda: self._open(narrow, _NARROW)),
            # GCM costs the same either way: what is opened here is encrypted again
            Stage("ingest: hash, open, write", lambda: self._seal(self._share), lambda: self._seal(self._packed)),
            Stage("distances: sketch a vector", lambda: self._sketch(wide), lambda: self._sketch(narrow)),
            Stage("sum: add a vector", lambda: self._add(wide), lambda: self._add(narrow)),
            Stage("sum: add a seed", self._seed, self._seed),
            Stage("output: mask and seal", lambda: self._output(64), lambda: self._output(_NARROW)),
        )

    def check(self) -> None:
        """Both shares in the ring of 48 bits give back the vector."""
        for piece in self._pieces:
            expand_into(_KEY, Usage.SHARE, self._pad, start=piece.start)
            opened = lifted(self._unpacked(piece) + self._pad, _NARROW)
            if not np.array_equal(opened, self._x[piece]):
                raise AssertionError("48 bits do not give the vector back")

    def _wide(self, piece: slice) -> Ring:
        return self._share[piece]

    def _unpacked(self, piece: slice) -> Ring:
        return unpacked(self._packed[_octets(piece)].data, _PIECE, _NARROW, self._buffer)

    def _encode(self) -> None:
        for piece in self._pieces:
            encode_into(self._x[piece], self._update[piece], self._scaling, _KEY, piece.start)

    def _split_64(self) -> None:
        self._encode()
        for piece in self._pieces:
            expand_into(_KEY, Usage.SHARE, self._share[piece], start=piece.start)
            kernels.mask(self._x[piece], self._share[piece], self._share[piece])

    def _split_48(self) -> None:
        self._encode()
        for piece in self._pieces:
            expand_into(_KEY, Usage.SHARE, self._buffer, start=piece.start)
            kernels.mask(self._x[piece], self._buffer, self._buffer)
            self._packed[_octets(piece)] = packed(self._buffer, _NARROW)

    def _seal(self, share: Ring | Octets) -> bytes:
        cipher, whole, digest = AESGCM(_KEY), share.view(np.uint8), hashlib.sha256()
        with self._file.open("wb", buffering=0) as file:
            for number, at in enumerate(range(0, whole.size, 1 << 19)):
                sealed = cipher.encrypt(number.to_bytes(12, "big"), whole[at : at + (1 << 19)].data, None)
                digest.update(sealed)
                file.write(sealed)
        return digest.digest()

    def _sketch(self, read: Callable[[slice], Ring]) -> None:
        for piece in self._pieces:
            kernels.sketch_into(self._buckets, self._words[piece], read(piece))

    def _add(self, read: Callable[[slice], Ring]) -> None:
        for piece in self._pieces:
            kernels.add_into(self._total[piece], read(piece))

    def _seed(self) -> None:
        """The same in both rings: a seed's stream has 64 bits a coordinate."""
        for piece in self._pieces:
            expand_into(_KEY, Usage.SHARE, self._buffer, start=piece.start)
            kernels.add_into(self._total[piece], self._buffer)

    def _output(self, bits: RingBits) -> None:
        for number, piece in enumerate(self._pieces):
            expand_into(_KEY, Usage.OUTPUT_MASK, self._buffer, start=piece.start)
            kernels.mask(self._total[piece], self._buffer, self._buffer)
            AESGCM(_KEY).encrypt(number.to_bytes(12, "big"), packed(self._buffer, bits), None)

    def _open(self, read: Callable[[slice], Ring], bits: RingBits) -> None:
        for piece in self._pieces:
            masked = read(piece)
            expand_into(_KEY, Usage.OUTPUT_MASK, self._pad, start=piece.start)
            kernels.open_average(masked, self._pad, _BOUND, _DIVISOR, self._average, bits)


def _octets(piece: slice) -> slice:
    return slice(element_bytes(_NARROW) * piece.start, element_bytes(_NARROW) * piece.stop)


def _timed(stage: Stage, repeats: int, dimension: int) -> RingStage:
    """In turns, after one turn that compiles and does not count."""
    turns = [
        (cpu_ns_each(stage.ring_64, dimension), cpu_ns_each(stage.ring_48, dimension)) for _ in range(repeats + 1)
    ][1:]
    wide, narrow = (list(one) for one in zip(*turns, strict=True))
    ratio = [two / one for one, two in turns]
    return RingStage(name=stage.name, ring_64=Spread.of(wide), ring_48=Spread.of(narrow), ratio=Spread.of(ratio))
