"""Under CKKS server A alone adds: sums that are not those of the released sites, made of ciphertexts without a key.

A site opens what it is served by its own code; the four sites' ciphertexts are real.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted.ciphertexts import (
    CHUNKS,
    MODULUS,
    PARAMETERS,
    SITES,
    Body,
    Forgery,
    Held,
    plus,
    times,
)
from harness.adversaries.scripted_agents import SITES as LISTED
from harness.adversaries.scripted_agents import How, announced, study
from protocol.ckks.ciphertext import SumChunk
from protocol.errors import AggregateOutOfBounds, MalformedMessage, PolicyRefusal, SumForged
from protocol.policy import clauses

_CHECKS: Final = "check values in every ciphertext, under keys that only sites hold, looked at before anything is used"
_ROUNDS: Final = 30


def _unchecked(checks: Any, number: int, slots: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ANN401  # not looked at
    return slots[: PARAMETERS.value_slots]


WITHOUT_CHECKS: Final[Mapping[str, object]] = {
    "protocol.ckks.check.SumChecks.require": _unchecked,
    "protocol.ckks.update._checked_weights": lambda found, summed, least, parameters: float(summed),
    "protocol.ckks.update._require_norm": passes,
}


class ForgedSum(Attack):
    """Several forgeries of one kind; the figure is how many of them a site opened."""

    party = Party.SERVER

    def __init__(
        self,
        name: str,
        tries: str,
        forgeries: Mapping[str, Forgery],
        defence: str = _CHECKS,
        without: Mapping[str, object] = WITHOUT_CHECKS,
    ) -> None:
        self.name, self.tries, self.defence, self.without = name, tries, defence, without
        self._forgeries = forgeries
        self.figure = f"forged sums of {len(forgeries)} that a site opened"

    def attempt(self, folder: Path) -> Found:
        held = Held()
        held.opened(held.honest())
        opened = [name for name, forge in self._forgeries.items() if _opens(held, forge)]
        return Found(bool(opened), len(opened), "; ".join(opened))


def _opens(held: Held, forge: Forgery) -> bool:
    try:
        held.opened(forge(held))
    except (SumForged, AggregateOutOfBounds, MalformedMessage):
        return False
    return True


# --- what is made -----------------------------------------------------------------------------------------------------


def _times_all(place: int) -> Forgery:
    """One ciphertext of an honest sum is the victim's alone."""

    def forge(held: Held) -> Body:
        body = held.honest()
        body[place] = times(held.bodies[1][place], len(SITES))
        return body

    return forge


def _of(*factors: int) -> Forgery:
    return lambda held: held.combined(factors)


def _out_of_place(held: Held) -> Body:
    first, second, third = held.honest()
    return [first, third, second]


def _of_an_earlier_round(held: Held) -> Body:
    """The same site, the same update."""
    return held.combined([1] * len(SITES), [held.bodies[0], held.earlier, *held.bodies[2:]])


def _plus_a_vector(checks_moved_by: float) -> Forgery:
    """A thousandth of the clip norm on one coordinate, with the check values left alone or moved at a guess."""

    def forge(held: Held) -> Body:
        offset = np.zeros(PARAMETERS.slots)
        offset[7] = 1e-3
        offset[PARAMETERS.value_slots :] = checks_moved_by
        body = held.honest()
        body[0] = SumChunk((body[0].c0 + held.encoded(offset)) % np.uint64(MODULUS), body[0].c1)
        return body

    return forge


def _slots_multiplied(held: Held) -> Body:
    """A polynomial multiplies every slot by a number of its own: the victim's values by 5, its check values by 1."""
    mask = np.full(PARAMETERS.slots, float(len(SITES)))
    mask[PARAMETERS.value_slots :] = 0.0
    extra = held.encoded(mask, scale=1.0)
    return [plus(chunk, times(own, extra)) for chunk, own in zip(held.honest(), held.bodies[1], strict=True)]


def _slots_of_one_multiplied(held: Held) -> Body:
    mask = np.full(PARAMETERS.slots, float(len(SITES)))
    mask[PARAMETERS.value_slots :] = 1.0
    multiplier = held.encoded(mask, scale=1.0)
    return [times(chunk, multiplier) for chunk in held.bodies[1]]


def _noisy(held: Held) -> Body:
    """What it adds depends on the secret key: whether it is noticed is one bit, for three rounds at most."""
    body = held.honest()
    body[0] = SumChunk(body[0].c0, (body[0].c1 + np.uint64(2**26)) % np.uint64(MODULUS))
    return body


def _in_clear(held: Held) -> Body:
    polynomial = np.zeros(PARAMETERS.ring_degree, dtype=np.uint64)
    return [SumChunk(polynomial, polynomial)] * CHUNKS


class ForgedForEver(Attack):
    """Whether a sum is discarded may be a bit about the key: a server that never stops asking."""

    name = "ckks-forged-for-ever"
    party = Party.SERVER
    tries = f"forges the sum of every one of {_ROUNDS} rounds, since each that is discarded may tell a bit of the key"
    defence = "a site that had to discard three sums contributes to none any more"
    figure = "forged sums that a site contributed to"
    without: Mapping[str, object] = {"protocol.policy.clauses.check_discarded_sums": passes}

    def attempt(self, folder: Path) -> Found:
        discarded = tuple[int, ...]()
        for number in range(1, _ROUNDS + 1):
            _, told = announced(study(), number, LISTED, How(version=0))
            told = told.model_copy(update={"ckks_key_id": "ab" * 16})
            try:
                clauses.check_discarded_sums(told, discarded)
            except PolicyRefusal:
                break
            discarded = (*discarded, number)
        return Found(len(discarded) > clauses.MOST_DISCARDED_SUMS, len(discarded))


def _one_site_alone() -> ForgedSum:
    return ForgedSum(
        "ckks-one-site-alone",
        "serves one site's ciphertexts times the number of sites, so that the average is that site's update",
        {
            "all of it": _of(0, len(SITES), 0, 0),
            **{f"ciphertext {place} alone": _times_all(place) for place in range(CHUNKS)},
        },
    )


def _other_sums() -> ForgedSum:
    combinations = ((0, 2, 1, 1), (1, 1, 2, 0), (2, 2, 0, 0), (-1, 3, 1, 1), (1, 1, 1, 0), (1, 1, 1, 2), (2, 3, -3, 2))
    return ForgedSum(
        "ckks-other-sums",
        "serves another whole-number combination of ciphertexts, some of an earlier round, or out of their place",
        {
            **{f"sites times {factors}": _of(*factors) for factors in combinations},
            "out of place": _out_of_place,
            "of an earlier round": _of_an_earlier_round,
        },
    )


def _something_added() -> ForgedSum:
    moved = (0.0, 1e-3 / 32, -1e-3 / 32)
    return ForgedSum(
        "ckks-something-added",
        "adds a vector or noise to the sum, or multiplies its values but not its check values",
        {
            **{f"a vector, checks moved by {by:.0e}": _plus_a_vector(by) for by in moved},
            "values multiplied": _slots_multiplied,
            "one site's values multiplied": _slots_of_one_multiplied,
            "noise on the second polynomial": _noisy,
        },
    )


def _sum_in_clear() -> ForgedSum:
    return ForgedSum(
        "ckks-sum-in-clear",
        "serves a sum that is not encrypted, of its own making",
        {"zeros": _in_clear},
        "no ciphertext is opened whose second polynomial is zero, and check values",
        {**WITHOUT_CHECKS, "protocol.ckks.streams.Streams.load_sum": lambda s, chunk: s._loaded(s._sum_stream(chunk))},
    )


def forged_ciphertext_sums() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return _one_site_alone(), _other_sums(), _something_added(), _sum_in_clear(), ForgedForEver()
