"""A vector as what reads its chunks, and the vector behind two shares."""

from __future__ import annotations

from collections.abc import Callable

from protocol.arithmetic.ring import Ring
from protocol.sharing import Share, expand_share


def chunks_of(vector: Ring) -> Callable[[int, int], Ring]:
    return lambda start, stop: vector[start:stop]


def reconstruct(a: Share, b: Share) -> Ring:
    return expand_share(a, 0, a.length) + expand_share(b, 0, b.length)
