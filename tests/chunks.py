"""A vector as what reads its chunks: (start, stop) -> elements."""

from __future__ import annotations

from collections.abc import Callable

from protocol.arithmetic.ring import Ring


def chunks_of(vector: Ring) -> Callable[[int, int], Ring]:
    return lambda start, stop: vector[start:stop]
