"""How far the ring is from being broken: this project's own estimate of the primal attack, and nobody's word.

One attack (the shortest vector in the embedded lattice, found by BKZ) in the geometric-series model, with the cost of
one call to a sieve, the most careful model in use. docs/adr/0010 prints it beside what the lattice estimator says,
which tries more attacks. It is here so that a change of the parameters cannot go unnoticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from protocol.ckks.ciphertext import LARGEST_MODULUS_BITS, NOISE_DEVIATION, CkksParameters

CLASSICAL, QUANTUM = 0.292, 0.265
"""log2 of a sieve's cost a block size (Becker et al. 2016; Laarhoven 2015): the whole attack costs at least one."""
TERNARY_DEVIATION = math.sqrt(2 / 3)


@dataclass(frozen=True)
class Attack:
    """BKZ's ``block`` size, and the smallest ``lattice`` (dimension of the embedding) for which it suffices."""

    block: int
    lattice: int

    def bits(self, per_block: float) -> float:
        return per_block * self.block


def root_hermite(block: int) -> float:
    """The quality of what BKZ with this block size finds (Chen 2013)."""
    return float(((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) ** (1 / (2 * (block - 1))))


def succeeds(block: int, samples: int, ring: int, log2_q: float, noise: float) -> bool:
    """Alkim et al. 2016, 6.3: the projected secret is shorter than what BKZ makes of the lattice without it.

    The lattice has ``samples`` + ``ring`` + 1 dimensions; the ternary secret is scaled to the noise's size (Bai and
    Galbraith 2014).
    """
    d = samples + ring + 1
    log2_volume = samples * log2_q + ring * math.log2(noise / TERNARY_DEVIATION)
    shown = 0.5 * math.log2(block) + math.log2(noise)
    return shown <= (2 * block - d - 1) * math.log2(root_hermite(block)) + log2_volume / d


def primal(ring: int, log2_q: float, noise: float = NOISE_DEVIATION) -> Attack:
    """The smallest block size for which any number of samples suffices, up to two ciphertexts' worth."""
    numbers = range(ring // 2, 2 * ring + 1, 8)

    def found(block: int) -> list[int]:
        return [samples for samples in numbers if succeeds(block, samples, ring, log2_q, noise)]

    low, high = 50, 4 * ring
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle + 1, high)
    samples = found(low)
    return Attack(low, samples[0] + ring + 1)


def test_the_default_ring_and_modulus() -> None:
    """The lattice estimator finds block size 513 in dimension 3,931 for the same attack and model: 149.8 and 135.9."""
    parameters = CkksParameters()
    attack = primal(parameters.ring_degree, math.log2(parameters.modulus))
    assert abs(attack.block - 513) <= 3
    assert abs(attack.lattice - 3931) <= 16
    assert attack.bits(CLASSICAL) == pytest.approx(149.8, abs=1)
    assert attack.bits(QUANTUM) == pytest.approx(135.9, abs=1)
    assert attack.bits(QUANTUM) > 128


@pytest.mark.parametrize("ring", sorted(LARGEST_MODULUS_BITS))
def test_the_standards_table_holds_in_its_own_cost_model(ring: int) -> None:
    """That one counts 8 d sieves of 2^(0.292 block + 16.4), so the same block size is more bits there."""
    attack = primal(ring, LARGEST_MODULUS_BITS[ring], 3.2)
    assert attack.bits(CLASSICAL) + 16.4 + math.log2(8 * attack.lattice) > 127
    assert attack.bits(CLASSICAL) < 128


def test_more_noise_or_a_smaller_modulus_is_harder() -> None:
    """An estimate that did not follow them would be none."""
    default = primal(2048, 40.0).block
    assert primal(2048, 36.0).block > default > primal(2048, 54.0).block
    assert primal(2048, 40.0, 8.0).block > default > primal(1024, 40.0).block
