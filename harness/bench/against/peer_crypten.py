"""CrypTen's squared distances: two processes, gloo between them, multiplication triples from its trusted first party.

``python -m harness.bench.against.peer_crypten PARAMETERS SITES`` prints one line of JSON. CrypTen 0.4.1 does not import
beside a recent torch because of its ONNX converter, which nothing here uses: a stand-in takes its place.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import sys
import tempfile
import time
import types
import warnings
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from harness.bench.vectors import update_of

_CONVERTER: Final = "crypten.nn.onnx_converter"
_NAMES: Final = ("from_onnx", "from_pytorch", "from_tensorflow", "TF_AND_TF2ONNX")
_WITHIN_S: Final = 900.0


class CryptenFigure(BaseModel):
    """CPU time of both processes together, and the largest relative error of a distance."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cpu_ns: int
    largest_relative_error: float


def measure(parameters: int, sites: int) -> CryptenFigure:
    """The distances of every site to the first one."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="moiety-crypten-") as folder:
        processes = [
            context.Process(target=_party, args=(rank, f"file://{folder}/meet", parameters, sites, results))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        figures = [results.get(timeout=_WITHIN_S) for _ in processes]
        for process in processes:
            process.join()
    return CryptenFigure(
        cpu_ns=sum(cpu for cpu, _ in figures), largest_relative_error=max(error for _, error in figures)
    )


def load_crypten() -> Any:  # noqa: ANN401 - an untyped library
    """CrypTen, without its ONNX converter. Raises: ImportError"""
    stand_in = types.ModuleType(_CONVERTER)
    for name in _NAMES:
        setattr(stand_in, name, None)
    sys.modules.setdefault(_CONVERTER, stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("crypten")


def _party(rank: int, meeting: str, parameters: int, sites: int, results: Any) -> None:  # noqa: ANN401 - a spawned queue
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "RENDEZVOUS": meeting, "DISTRIBUTED_BACKEND": "gloo"}
    warnings.simplefilter("ignore")
    crypten = load_crypten()
    import torch

    torch.set_num_threads(1)
    crypten.init()
    scale = math.sqrt(parameters)  # 16 fraction bits hold nothing of coordinates as small as 1 / sqrt(D)
    vectors = [torch.from_numpy(update_of(place, parameters) * scale) for place in range(sites + 1)]
    own, *others = [crypten.cryptensor(vector, src=0) for vector in vectors]
    warm_up = (own[:1000] - others[0][:1000]).square().sum().get_plain_text()
    begun = time.process_time_ns()
    opened = [float((other - own).square().sum().get_plain_text()) for other in others]
    cpu_ns = time.process_time_ns() - begun
    plain = [float((vector - vectors[0]).square().sum()) for vector in vectors[1:]]
    errors = [abs(a - b) / b for a, b in zip(opened, plain, strict=True)]
    results.put((cpu_ns, max(errors) if math.isfinite(float(warm_up)) else math.inf))


if __name__ == "__main__":
    sys.stdout.write(measure(int(sys.argv[1]), int(sys.argv[2])).model_dump_json() + "\n")
