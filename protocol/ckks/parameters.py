"""Ring, modulus and scale of the CKKS path (docs/protocol.md 11; why these: docs/adr/0010)."""

from __future__ import annotations

import math
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.errors import ConfigurationError

LARGEST_MODULUS_BITS: Final = {1024: 27, 2048: 54, 4096: 109, 8192: 218}
"""Ring degree -> most bits of modulus at 128-bit security, ternary secret.

Source: Albrecht et al. 2018, Homomorphic Encryption Standard, table 1
"""
MOST_PRIME_BITS: Final = 60
NOISE_DEVIATION: Final = math.sqrt(10.5)
"""Of one coefficient's noise: SEAL draws it from a centred binomial distribution of 2 x 21 bits."""
LARGEST_NOISE: Final = 21 + 1
"""The most that distribution gives, and one for rounding."""
DEVIATIONS: Final = 8
"""A sum farther from the truth than so many standard deviations does not happen by noise (6e-16 a value)."""


class CkksParameters(BaseModel):
    """Additions only: one prime is the whole modulus, no key switching, no rescaling.

    A value z is encoded as z * 2^``scale_bits``; an update is divided by the clip norm first, so its L2 norm is at
    most 1. ``modulus`` q is a prime, 1 modulo twice the ring degree N. A ciphertext holds N/2 values, the last
    ``check_slots`` of which show that a sum is the right one. Sums of up to ``most_sites`` ciphertexts decrypt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ring_degree: int = 2048
    modulus: int = 0xFF_FFFF_7001
    scale_bits: int = Field(default=36, ge=1, le=MOST_PRIME_BITS)
    most_sites: int = Field(default=100, ge=1, le=10_000)
    check_slots: int = Field(default=4, ge=1, le=64)

    @model_validator(mode="after")
    def _consistent(self) -> CkksParameters:
        if self.ring_degree not in LARGEST_MODULUS_BITS:
            raise ValueError(f"ring_degree is one of {[*LARGEST_MODULUS_BITS]}, found {self.ring_degree}")
        most = min(LARGEST_MODULUS_BITS[self.ring_degree], MOST_PRIME_BITS)
        if not 2 <= self.modulus.bit_length() <= most:
            raise ValueError(
                f"modulus has {self.modulus.bit_length()} bits; at ring degree {self.ring_degree} one prime of at most "
                f"{most} bits keeps 128-bit security"
            )
        if self.modulus % (2 * self.ring_degree) != 1:
            raise ValueError(f"modulus must be 1 modulo {2 * self.ring_degree}, found {self.modulus:#x}")
        if self.largest_magnitudes < self.clipped_magnitudes:
            raise ValueError(
                f"a modulus of {self.modulus.bit_length()} bits at scale 2^{self.scale_bits} cannot hold the sum of "
                f"{self.most_sites} clipped updates; lower scale_bits or most_sites"
            )
        return self

    def require_sites(self, sites: int) -> None:
        """Refuse, before a study starts, a cohort whose sum would not decrypt; ``sites`` counts the requester.

        Raises: ConfigurationError
        """
        if sites > self.most_sites:
            raise ConfigurationError(
                f"protection 'ckks' sums up to {self.most_sites} sites, found {sites} with the requester: take "
                "protection 'shares', or a smaller cohort"
            )

    @property
    def slots(self) -> int:
        """Values in one ciphertext, check values included."""
        return self.ring_degree // 2

    @property
    def value_slots(self) -> int:
        """Values of an update in one ciphertext."""
        return self.slots - self.check_slots

    @property
    def check_divisor(self) -> float:
        """S, what <K, z> is divided by: at least the length of any K, so that no check value is longer than z and v."""
        return math.sqrt(self.slots)

    @property
    def scale(self) -> float:
        """The factor of a value before it is encrypted."""
        return math.ldexp(1.0, self.scale_bits)

    @property
    def largest_magnitudes(self) -> float:
        """The most that a ciphertext's magnitudes may add up to, so that ``most_sites`` of them cannot wrap.

        No coefficient of the encoding is larger than 2/N times that sum, times the scale.
        """
        return self.slots * (self.modulus / 2 / self.most_sites - LARGEST_NOISE) / self.scale

    @property
    def clipped_magnitudes(self) -> float:
        """The most that a clipped update's piece, a weight and the check values add up to.

        The piece has L2 norm 1 over its slots, the weight is at most 1, so z is no longer than sqrt(2), a v than 1.
        """
        return math.sqrt(self.value_slots) + 1 + self.check_slots * (math.sqrt(2) + 1)

    @property
    def value_deviation(self) -> float:
        """Standard deviation of one decrypted value of one ciphertext: noise and rounding of N coefficients."""
        return math.sqrt(self.slots * (NOISE_DEVIATION**2 + 1 / 12)) / self.scale

    @property
    def coefficient_bytes(self) -> int:
        """Bytes of one coefficient as it travels."""
        return -(-self.modulus.bit_length() // 8)
