"""The OT extensions: into how many digits a session splits Delta's 128 bits.

Every digit of k bits has a tree of 2^k keys, of which the sender lacks one (``tree.py``). One column of U serves a
whole digit, so fewer digits mean less traffic (one bit per row and digit, the first digit free) and more work (2^k
streams a digit). 128 digits of one bit are the extension of Ishai et al. 2003, without trees.

    extension     digits   bytes of U per element   streams per column
    IKNP             128                    1016                256
    SOFTSPOKEN        21                     160               1472

Source:   Roy 2022 (SoftSpokenOT, section 3); docs/protocol.md 7, docs/adr/0006
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigurationError
from protocol.mpc.ot.base import BASE_OTS

MAX_DIGIT_BITS: Final = 8


@dataclass(frozen=True)
class Extension:
    """A number of digits, as equal in length as they can be; the longer ones come first.

    Raises:   ConfigurationError, for a number of digits that 128 bits cannot take or whose trees grow too large
    """

    digits: int

    def __post_init__(self) -> None:
        fewest = BASE_OTS // MAX_DIGIT_BITS
        if not fewest <= self.digits <= BASE_OTS:
            raise ConfigurationError(
                f"an OT extension reads Delta as {fewest} to {BASE_OTS} digits, found {self.digits}; "
                f"{BASE_OTS} is IKNP, fewer digits trade work for traffic"
            )

    @property
    def digit_bits(self) -> tuple[int, ...]:
        """The bits of each digit; 128 in all."""
        short, longer = divmod(BASE_OTS, self.digits)
        return (short + 1,) * longer + (short,) * (self.digits - longer)

    @property
    def leaves(self) -> int:
        """Keys of all digits together."""
        return sum(1 << bits for bits in self.digit_bits)

    def places(self) -> list[tuple[slice, slice]]:
        """The columns and keys of every digit."""
        found, column, leaf = [], 0, 0
        for bits in self.digit_bits:
            found.append((slice(column, column + bits), slice(leaf, leaf + (1 << bits))))
            column, leaf = column + bits, leaf + (1 << bits)
        return found


IKNP: Final = Extension(BASE_OTS)
SOFTSPOKEN: Final = Extension(21)
DEFAULT_EXTENSION: Final = SOFTSPOKEN
"""At most 0.9 MB per contributor, what is sent online included (docs/adr/0006)."""
