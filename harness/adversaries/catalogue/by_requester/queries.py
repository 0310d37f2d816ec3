"""What one opened number can tell a requester that chooses its query: 64 bits hold three coordinates of an update."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.engine.correlations import correlations_from
from protocol.arithmetic.ring import Ring, from_signed
from protocol.mpc import measurement
from protocol.mpc.measurement import OpeningShare, SiteSketch
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side, split

_PARAMETERS = StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3)
_PLACES = (4, 7, 9)
_DIGIT = 21
_CHALLENGE = bytes(range(32))
_SEED = bytes(32)


def _query() -> Ring:
    """1, 2^21 and 2^42 at three coordinates: their product with an update holds all three as digits."""
    vector = np.zeros(_PARAMETERS.dimension, dtype=np.int64)
    vector[list(_PLACES)] = 1, 2**_DIGIT, 2 ** (2 * _DIGIT)
    return from_signed(vector)


def _digits(opened: int) -> list[int]:
    """The signed digits of base 2^21, lowest first."""
    found = []
    for _ in _PLACES:
        digit = (opened + 2 ** (_DIGIT - 1)) % 2**_DIGIT - 2 ** (_DIGIT - 1)
        found.append(digit)
        opened = (opened - digit) >> _DIGIT
    return found


class ThreeDigits(Attack):
    """A probe of the requester's choice under a rule that opens inner products; nothing checks a probe."""

    name = "query-of-three-digits"
    party = Party.REQUESTER
    tries = "asks for an inner product whose 64 bits hold three coordinates of a small model's update"
    defence = "inner_products left out of a site's may_open; at most two such numbers per model"
    figure = "of 3 coordinates read exactly from one opened number"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        update = np.random.default_rng(73).integers(-(2**19), 2**19, _PARAMETERS.dimension)
        opened = self._opened(from_signed(update))
        read = sum(digit == update[place] for digit, place in zip(_digits(opened), _PLACES, strict=True))
        return Found(read == len(_PLACES), read)

    def _opened(self, update: Ring) -> int:
        """The one number, mod 2^64, that both servers' shares add up to."""
        of_update, of_query = split(update, b"\1" * 32)[1], split(_query(), b"\2" * 32)[1]
        own = {Side.A: update - of_update.vector, Side.B: of_update.vector}
        asked = {Side.A: _query() - of_query.vector, Side.B: of_query.vector}
        operands = {
            side: measurement.prepare_all(
                side,
                _CHALLENGE,
                [SiteSketch("victim", own[side], asked[side])],
                _PARAMETERS,
                opens=Needs.INNER_PRODUCTS,
            )
            for side in Side
        }
        shares = self._shares(operands)
        return int((shares[Side.A].values + shares[Side.B].values)[0])

    def _shares(self, operands: Mapping[Side, list[measurement.Operands]]) -> dict[Side, OpeningShare]:
        halves = correlations_from("dealer", _SEED)([operands[Side.A][0].lengths], "chosen query")
        half = dict(zip(Side, (one[0] for one in halves), strict=True))
        masked = {side: measurement.masked(operands[side][0], half[side]) for side in Side}
        return {
            side: measurement.opening_share(
                side, operands[side][0], masked[side.other], half[side], _SEED, "chosen query", _PARAMETERS
            )
            for side in Side
        }


def chosen_queries() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (ThreeDigits(),)
