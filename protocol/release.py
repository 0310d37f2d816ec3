"""The sum that a round releases: the servers' chunks, and the agents' opening of them (docs/protocol.md 9).

Each server sums its shares. The masking side M, server A in odd rounds and B in even ones, draws a fresh seed t and
sends its sum less PRG(t) to the other, which adds its own; agents get that vector from the other and t from M.
Everything works on chunks, so that no server has a whole vector in memory.

Integrity tags are further elements after the model's coordinates. Servers add them like any other;
agents open them with :func:`open_output_chunk`, which puts no bound on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import kernels
from protocol.arithmetic.ring import Ring, Signed, Usage, expand, expand_into, lifted, to_signed
from protocol.errors import AggregateOutOfBounds, ProtocolViolation
from protocol.parameters import WORD_BITS, RingBits, StudyParameters
from protocol.sharing import ChunkSource, Side, round_seed_side

_BOUND = 5
_NORM_PIECE = 1 << 16
_SQUARED_BELOW = 1 << 32


def masking_side(round_number: int) -> Side:
    """Return the side that draws the mask's seed t and serves it; the other serves the vector. Sides alternate by
    round.
    """
    return round_seed_side(round_number)


def sum_chunk(sources: Sequence[ChunkSource], start: int, stop: int) -> Ring:
    """Server: this side's share of the sum, elements ``start`` to ``stop``, over the shares in the release set.

    Shapes:   -> uint64[stop - start], ring 2^64
    Raises:   ProtocolViolation, when a source returns another number of elements
    """
    total = np.zeros(stop - start, dtype=np.uint64)
    for source in sources:
        kernels.add_into(total, source(start, stop))
    return total


def masked_sum_chunk(sum_m: Ring, t_seed: bytes, start: int) -> Ring:
    """M: its sum less PRG(t), for the other server.

    Requires: ``t_seed`` fresh for this release
    Reveals:  a uniform chunk to the other server
    """
    out = np.empty_like(sum_m)
    kernels.mask(sum_m, expand(t_seed, Usage.OUTPUT_MASK, sum_m.size, start=start), out)
    return out


def masked_sum_of(sources: Sequence[ChunkSource], t_seed: bytes, start: int, stop: int, chunk: int) -> Ring:
    """Elements ``start`` to ``stop`` of :func:`sum_chunk` behind :func:`masked_sum_chunk`, ``chunk`` at once.

    Shapes, reveals, raises: as those
    """
    out = np.empty(stop - start, dtype=np.uint64)
    for at in range(start, stop, chunk):
        end = min(at + chunk, stop)
        out[at - start : end - start] = masked_sum_chunk(sum_chunk(sources, at, end), t_seed, at)
    return out


def mask_source(t_seed: bytes) -> ChunkSource:
    """The mask itself, PRG(t), piece by piece."""
    return lambda start, stop: expand(t_seed, Usage.OUTPUT_MASK, stop - start, start=start)


def combine_chunk(masked: Ring, own_sum: Ring) -> Ring:
    """The other server: the vector half of the output, both sums less PRG(t).

    Raises:   ProtocolViolation, when the chunks differ in length
    """
    total = masked.copy()
    kernels.add_into(total, own_sum)
    return total


def open_output_chunk(vector_chunk: Ring, t_seed: bytes | None, start: int) -> Ring:
    """Agent: the sum of all shares from both halves of the output, not checked against any bound.

    ``t_seed`` is None where the mask has been taken off already, as where tags are checked.
    """
    if t_seed is None:
        return vector_chunk
    total = expand(t_seed, Usage.OUTPUT_MASK, vector_chunk.size, start=start)
    kernels.add_into(total, vector_chunk)
    return total


def open_aggregate_chunk(
    vector_chunk: Ring,
    t_seed: bytes | None,
    start: int,
    bound: int,
    bits: RingBits = WORD_BITS,
) -> Signed:
    """Agent: the summed, weighted, encoded updates; every coordinate within ``bound``.

    Shapes:   uint64[n], ring 2^bits -> int64[n], f fraction bits
    Reveals:  the sum, to the agents in the round
    Raises:   AggregateOutOfBounds: the round is discarded and the model stays as it was; ProtocolViolation, where the
              ring has no room for ``bound``
    """
    if bound >= 1 << (bits - 1):
        raise ProtocolViolation(f"a sum of up to {bound} does not fit the ring of {bits} bits: take ring_bits = 64")
    signed = to_signed(lifted(open_output_chunk(vector_chunk, t_seed, start), bits))
    _require_within(int(np.count_nonzero((signed > bound) | (signed < -bound))), signed.size, start, bound)
    return signed


def _require_within(beyond: int, size: int, start: int, bound: int) -> None:
    if beyond:
        raise AggregateOutOfBounds(
            f"{beyond} of {size} coordinates from {start} on are beyond {bound}: a share or a sum was altered; "
            "the round is discarded and the model stays as it was"
        )


def self_weighted_bound(parameters: StudyParameters, contributors: int) -> int:
    """The largest size of a model coordinate in an honest sum of updates that sites weigh themselves, in ring units.

    Nobody knows the sum of weights yet: 5 E times the number summed, plus one per site for the rounding.
    ``contributors`` counts all sites in the sum, the requester too. It bounds the coordinate of the weights as well.
    """
    return (_BOUND * parameters.encoded_norm + 1) * contributors


def own_weights_sum(last: int, parameters: StudyParameters, contributors: int) -> float:
    """The sum of the weights that sites gave themselves, from the last coordinate of their sum (docs/protocol.md 9).

    Each shares w E with w in [1/grid, 1], rounded by less than one.

    Shapes:   an integer in ring units -> a float64, ``last`` / E
    Requires: ``contributors`` counts all sites in the sum, the requester too
    Raises:   AggregateOutOfBounds: the round is discarded and the model stays as it was
    """
    norm = parameters.encoded_norm
    lowest = contributors * norm // parameters.weight_grid - contributors
    highest = contributors * norm + contributors
    if not lowest <= last <= highest:
        raise AggregateOutOfBounds(
            f"the weights of {contributors} sites sum to {last} ring units, possible are {lowest} to {highest}: "
            "a share or a sum was altered; the round is discarded and the model stays as it was"
        )
    return last / norm


def require_clipped_sum(coordinates: Signed, last: int, contributors: int) -> None:
    """Refuse a sum of self-weighted updates that is longer than clipped updates of these weights can make it.

    Why: the range check lets one site put several E, or minus several E, in the coordinate of the weights. With a
    negative number it would make the sum of weights small and everybody's step large. Each honest update is at most
    w C long, so no average that passes is longer than C but for the rounding, below one ring unit per coordinate.

    Shapes:   int64[D - 1], the model's coordinates, opened and within their bound; ``last`` from the same sum
    Requires: ``last`` passed :func:`own_weights_sum`; ``contributors`` counts all sites in the sum, the requester too
    Raises:   AggregateOutOfBounds: the round is discarded and the model stays as it was
    """
    starts = range(0, coordinates.size, _NORM_PIECE)
    pieces = (coordinates[start : start + _NORM_PIECE].astype(np.float64) for start in starts)
    found = math.sqrt(sum(float(np.dot(one, one)) for one in pieces))
    most = last + contributors * (1 + math.sqrt(coordinates.size))
    if found > most:
        raise AggregateOutOfBounds(
            f"the sum of {contributors} self-weighted updates has norm {found:.1f} in ring units, clipped updates "
            f"whose weights sum to {last} reach {most:.1f}: a site or a server broke the protocol; the round is "
            "discarded and the model stays as it was"
        )


def class_totals(signed: Signed, classes: int, contributors: int) -> tuple[int, ...]:
    """Return the training samples of each class at all sites in the sum together (docs/protocol.md 9).

    Shapes:   int64[D], plain integers: the first ``classes`` are counts, the others zero -> ``classes`` totals
    Requires: ``contributors`` counts all sites in the sum, the requester too
    Raises:   AggregateOutOfBounds, when a total is negative, anything follows the counts, or there are fewer samples
              than sites; ProtocolViolation, when the vector is shorter than ``classes``
    """
    if not 1 <= classes <= signed.size:
        raise ProtocolViolation(f"{classes} class counts do not fit a vector of {signed.size} coordinates")
    totals = tuple(int(total) for total in signed[:classes])
    negative = [place for place, total in enumerate(totals) if total < 0]
    beyond = int(np.count_nonzero(signed[classes:]))
    if negative or beyond or sum(totals) < contributors:
        raise AggregateOutOfBounds(
            f"the class counts of {contributors} sites sum to {sum(totals)}, negative in classes {negative}, with "
            f"{beyond} numbers behind the {classes} classes: a share or a sum was altered; the totals are discarded"
        )
    return totals


def average_chunk(signed: Signed, sum_of_weights: float, parameters: StudyParameters) -> NDArray[np.float32]:
    """The weighted average update, the same bits at every site.

    Order of operations: the integer to float64, divided by 2^f * sum_of_weights (a float64), rounded to float32.

    Raises:   ProtocolViolation, when the sum of weights is not positive
    """
    return (signed.astype(np.float64) / _divisor(sum_of_weights, parameters)).astype(np.float32)


def longest_sum(parameters: StudyParameters, sum_of_numerators: int, contributors: int) -> float:
    """The largest norm that an honest sum of clipped, weighted updates can have, in ring units.

    E times the sum of weights, the requester's own included, and less than one per coordinate and site for rounding.
    ``sum_of_numerators`` is the sum of weights times the grid; ``contributors`` counts all sites in the sum.
    """
    return parameters.encoded_norm * sum_of_numerators / parameters.weight_grid + contributors * math.sqrt(
        parameters.dimension
    )


class AverageOpener:
    """Agent: :func:`open_aggregate_chunk` and :func:`average_chunk` in one pass, with the same bits, and the norm.

    Squares add up as exact integers, so the norm is the same in whatever pieces the sum arrives. No coordinate is
    longer than the whole, so ``longest`` bounds each of them too.

    Requires: ``longest`` from :func:`longest_sum`; ``t_seed`` is None where the mask has been taken off already
    Raises:   ProtocolViolation, when the sum of weights is not positive, or so large that squares could overflow
    """

    def __init__(
        self,
        t_seed: bytes | None,
        longest: float,
        sum_of_weights: float,
        parameters: StudyParameters,
    ) -> None:
        self._t_seed = t_seed
        self._longest = longest
        self._bound = math.ceil(longest)
        if self._bound >= _SQUARED_BELOW:
            raise ProtocolViolation(
                f"a sum whose coordinates reach {self._bound} has squares beyond 64 bits: take fewer sites, or a "
                "smaller encoded_norm_log2"
            )
        self._divisor = _divisor(sum_of_weights, parameters)
        self._bits = parameters.ring_bits
        self._pad = np.empty(0, dtype=np.uint64)
        self._squares = 0

    def open_into(self, average: NDArray[np.float32], vector_chunk: Ring, start: int) -> None:
        """The average of the piece that begins at ``start``.

        Shapes:   uint64[n], ring 2^64 -> float32[n]
        Reveals, raises: as :func:`open_aggregate_chunk`; ``average`` then holds nothing of use
        """
        if self._pad.size < vector_chunk.size:
            self._pad = np.zeros(vector_chunk.size, dtype=np.uint64)
        pad = self._pad[: vector_chunk.size]
        if self._t_seed is not None:
            expand_into(self._t_seed, Usage.OUTPUT_MASK, pad, start=start)
        beyond, squares = kernels.open_average(vector_chunk, pad, self._bound, self._divisor, average, self._bits)
        _require_within(beyond, vector_chunk.size, start, self._bound)
        self._squares += squares

    def finish(self) -> None:
        """All pieces are opened: their sum is no longer than clipped updates make it.

        Why: the range check lets one site send several clip norms, and the requester's part is checked by nobody else;
        this bounds how far a round can move the model, whoever sends what.

        Raises:   AggregateOutOfBounds: the round is discarded and the model stays as it was
        """
        found = math.sqrt(self._squares)
        if found > self._longest:
            raise AggregateOutOfBounds(
                f"the sum has norm {found:.1f} in ring units, clipped updates of these weights reach "
                f"{self._longest:.1f}: a site or a server broke the protocol; the round is discarded and the model "
                "stays as it was"
            )


def _divisor(sum_of_weights: float, parameters: StudyParameters) -> float:
    if not sum_of_weights > 0:
        raise ProtocolViolation(f"the sum of weights must be positive, found {sum_of_weights}; check the weight list")
    return parameters.scale * sum_of_weights
