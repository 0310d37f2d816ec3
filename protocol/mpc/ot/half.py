"""One server's half of the correlation that one contributor's products consume (docs/protocol.md 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation


@dataclass(frozen=True)
class CorrelationHalf:
    """A's half holds (a, c_A), B's (b, c_B), with c_A[p] + c_B[p] = <a, b> over product p's segment.

    Single use: a second sketch masked by the same half would give linear equations in the difference.

    Shapes:   vector uint64[sum(lengths)], products uint64[len(lengths)], ring 2^64
    Raises:   ProtocolViolation, when the shapes do not fit ``lengths``
    """

    lengths: tuple[int, ...]
    vector: Ring = field(repr=False)
    products: Ring = field(repr=False)

    def __post_init__(self) -> None:
        shapes = (self.vector.shape, self.products.shape)
        if shapes != ((sum(self.lengths),), (len(self.lengths),)) or min(self.lengths, default=0) < 1:
            raise ProtocolViolation(
                f"a correlation for product lengths {self.lengths} can't have shapes {shapes}; lengths are at least "
                "1 and name every element once"
            )


def split_halves(lengths_list: list[tuple[int, ...]], vector: Ring, products: Ring) -> list[CorrelationHalf]:
    """Cut a whole batch's vector and products into one half per contributor; the halves own their memory."""
    elements = np.cumsum([0, *(sum(lengths) for lengths in lengths_list)])
    places = np.cumsum([0, *(len(lengths) for lengths in lengths_list)])
    return [
        CorrelationHalf(
            lengths, vector[elements[i] : elements[i + 1]].copy(), products[places[i] : places[i + 1]].copy()
        )
        for i, lengths in enumerate(lengths_list)
    ]


def segment_sums(lengths_list: list[tuple[int, ...]], terms: Ring) -> Ring:
    """Sum the elements' terms over each product's segment, modulo 2^64."""
    lengths = [length for group in lengths_list for length in group]
    return np.add.reduceat(terms, np.cumsum([0, *lengths[:-1]]))


def checked_lengths(lengths_list: list[tuple[int, ...]]) -> int:
    """The number of elements in a batch.

    Raises:   ProtocolViolation, when there is no product or one of length 0
    """
    if not lengths_list or any(min(lengths, default=0) < 1 for lengths in lengths_list):
        raise ProtocolViolation(
            "a batch needs at least one contributor, each at least one product, each of length 1 or more; found "
            f"{lengths_list}"
        )
    return sum(sum(lengths) for lengths in lengths_list)
