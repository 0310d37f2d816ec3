"""The flat vector in blocks, and Mallows' weights for each of them (protocol.rules.risk).

A block has its own K and v_0, so its own weights; the policies' clauses hold for every block's list. With one block it
is the rule as studies have it. ``scaling`` multiplies coordinates before anything is measured: a diagonal metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.rules.risk.choice import Choice, best_choice
from protocol.rules.risk.criterion import plug_in_risk
from protocol.rules.risk.terms import ListTerms
from protocol.wire.messages import LayerShape

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Some coordinates of the flat vector that follow each other."""

    name: str
    start: int
    stop: int

    @property
    def part(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        return self.stop - self.start


def one_block(layers: Sequence[LayerShape]) -> tuple[Block, ...]:
    """The whole model."""
    return (Block("model", 0, sum(int(np.prod(layer.shape)) for layer in layers)),)


def block_a_layer(layers: Sequence[LayerShape]) -> tuple[Block, ...]:
    """A block for every module: its weights and its bias, which follow each other."""
    found: list[Block] = []
    for layer in layers:
        name, size = layer.name.rpartition(".")[0], int(np.prod(layer.shape))
        start = found[-1].stop if found else 0
        if found and found[-1].name == name:
            found[-1] = Block(name, found[-1].start, start + size)
        else:
            found.append(Block(name, start, start + size))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Means:
    """K / v_0 of every block, the mean over measured rounds, float64[blocks, n, n]."""

    products: Reals = field(repr=False)
    rounds: int = 0

    def with_round(self, blocks: Sequence[Block], offsets: Reals, variances: Reals) -> Means:
        """One measured round more. Shapes: ``offsets`` g_i - g_0 float64[n, D], ``variances`` float64[D]

        A block whose noise is 0 keeps its means.
        """
        added = self.products.copy()
        for place, block in enumerate(blocks):
            part, noise = offsets[:, block.part], float(variances[block.part].sum())
            if noise > 0:
                added[place] += (part @ part.T / noise - added[place]) / (self.rounds + 1)
        return Means(added, self.rounds + 1)

    def choices(self, noise: Reals, terms: ListTerms, grid: int, bias_factor: float) -> tuple[Choice, ...]:
        """Every block's list. Shapes: ``noise`` v_i / v_0 float64[n]"""
        return tuple(best_choice(plug_in_risk(K, noise, bias_factor), terms, grid) for K in self.products)


def averaged(blocks: Sequence[Block], weights: Sequence[Reals], updates: Reals) -> Reals:
    """The step, every block by its own weights. Shapes: float64[n] each, float64[n + 1, D], own first -> float64[D]

    With the own update alone it is that.
    """
    own, others = updates[0], updates[1:]
    step: Reals = own.copy()
    for block, one in zip(blocks, weights, strict=True):
        if len(others):
            step[block.part] += one @ (others[:, block.part] - own[block.part])
    return step


def sampled_noise(terms: ListTerms, samples: Mapping[str, int]) -> Reals:
    """v_i / v_0 of the sites, by their declared samples."""
    return np.array([1.0 if terms.noise is None else terms.noise.of(count) for count in samples.values()])
