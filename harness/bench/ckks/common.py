"""The CKKS parameters and the interface that tutorials use: 8192, [60, 40, 40, 60], public key, TenSEAL's vectors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tenseal
from numpy.typing import NDArray

from harness.bench import probe
from harness.bench.ckks.results import CkksFigures, CkksTimes
from harness.bench.ckks.vectors import WeightedUpdate, errors_of, weighted_update
from protocol.wire.channel.sealing import sealed_length

RING_DEGREE: Final = 8192
MODULUS_BITS: Final = (60, 40, 40, 60)
SCALE_BITS: Final = 40
_SLOTS: Final = RING_DEGREE // 2


@dataclass
class _Measured:
    """Bytes of all sites together, and CPU time by step."""

    up_bytes: int = 0
    down_bytes: int = 0
    ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.process_time_ns()
        yield
        self.ns[name] = self.ns.get(name, 0) + time.process_time_ns() - begun


def measure_common(dimension: int, sites: int) -> CkksFigures:
    """``sites`` updates encrypted, serialised, parsed, added and decrypted, one ciphertext of each at a time.

    The weights are not encrypted; that spares this way one value.
    """
    own = tenseal.context(tenseal.SCHEME_TYPE.CKKS, RING_DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS))
    own.global_scale = 2.0**SCALE_BITS
    public = tenseal.context_from(own.serialize(save_secret_key=False))
    updates = [weighted_update(place, dimension, sites) for place in range(sites)]
    probe.reset_peak(os.getpid())
    measured, opened = _Measured(), np.empty(dimension, dtype=np.float32)
    weights = sum(one.scaling.weight for one in updates)
    for start in range(0, dimension, _SLOTS):
        opened[start : start + _SLOTS] = _one_ciphertext(own, public, updates, start, measured) / weights
    return _figures(measured, opened, sites, probe.peak_mb(os.getpid()))


def _one_ciphertext(
    own: Any,  # noqa: ANN401 - TenSEAL has no types
    public: Any,  # noqa: ANN401 - TenSEAL has no types
    updates: list[WeightedUpdate],
    start: int,
    measured: _Measured,
) -> NDArray[np.float64]:
    with measured.step("encrypt"):
        sent = [tenseal.ckks_vector(own, _piece(one, start)).serialize() for one in updates]
    with measured.step("check"):
        received = [tenseal.ckks_vector_from(public, one) for one in sent]
    with measured.step("add"):
        total = received[0]
        for one in received[1:]:
            total += one
        answer = total.serialize()
    with measured.step("decrypt"):
        values = np.array(tenseal.ckks_vector_from(own, answer).decrypt())
    measured.up_bytes += sum(map(len, sent))
    measured.down_bytes += len(answer)
    return values


def _piece(one: WeightedUpdate, start: int) -> list[float]:
    scaling = one.scaling
    piece = one.update[start : start + _SLOTS].astype(np.float64) * scaling.unit * scaling.factor * scaling.weight
    values: list[float] = piece.tolist()
    return values


def _figures(measured: _Measured, opened: NDArray[np.float32], sites: int, peak_mb: float) -> CkksFigures:
    errors, ns, each = errors_of(opened, sites), measured.ns, sites * opened.size
    return CkksFigures(
        scheme="TenSEAL's vectors, public key",
        ring_degree=RING_DEGREE,
        modulus_bits=MODULUS_BITS,
        scale_bits=SCALE_BITS,
        bytes_up_per_parameter=sealed_length(measured.up_bytes // sites) / opened.size,
        bytes_down_per_parameter=sealed_length(measured.down_bytes) / opened.size,
        ns_per_parameter=CkksTimes(
            encrypt=ns["encrypt"] / each,
            check=ns["check"] / each,
            add=ns["add"] / each,
            decrypt=ns["decrypt"] / opened.size,
        ),
        peak_rss_mb=peak_mb,
        worker_rss_mb=None,
        max_error=errors.largest,
        norm_error=errors.norm,
    )
