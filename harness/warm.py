"""Compile every numba kernel once, so that no process of a federation does it in the middle of a round.

numba keeps the machine code beside the source files; later processes load it from there. Run with
``python -m harness.warm``.
"""

from __future__ import annotations

import numpy as np

from protocol.arithmetic import kernels
from protocol.mpc.product import ot_pair

_LENGTH = 64


def warm() -> None:
    x = np.arange(_LENGTH, dtype=np.uint64)
    kernels.mask(x, x, np.empty_like(x))
    kernels.add_into(x.copy(), x)
    kernels.sketch_into(np.zeros(_LENGTH, dtype=np.uint64), x, x)
    ot_pair([(2, 1)], bytes(range(32)), bytes(range(32, 64)))


if __name__ == "__main__":
    warm()
