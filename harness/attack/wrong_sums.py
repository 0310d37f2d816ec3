"""Sums that a server alters, tags that a party makes wrong: nothing wrong is to be opened, nobody blamed for another.

Sums are made of real updates, encoded, shared, added and masked as servers do it; a site opens them. Rounds with
tags are whole rounds by the product's functions, in which one party deviates; the figure says how many of a few rounds,
each with draws of its own and both servers in turn as the one that masks, went as the attacker wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from harness.attack.attack import Attempt, Found, passes, replaced
from harness.attack.forgeries import wrap_around_entry
from harness.attack.scripted_agents import REQUESTER
from harness.attack.scripted_rounds import SITES, SMALL, VICTIM, pair_in_memory, small_update
from harness.attack.tagged_round import CONTRIBUTORS, Half, TaggedRound, deviating, entry, source
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, derive
from protocol.errors import AggregateOutOfBounds, MoietyError, SumAltered
from protocol.messages.control import Go, ShareKind, TagsFailed
from protocol.mpc import sketch
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.release import AverageOpener, combine_chunk, longest_sum, masked_sum_chunk, sum_chunk
from protocol.sharing import Side, split
from protocol.tags import PAIR

_NO_BOUNDS: Final[Mapping[str, object]] = {
    "protocol.release._require_within": passes,
    "protocol.release.AverageOpener.finish": passes,
}


def _opened(served: Ring, seed: bytes, parameters: StudyParameters, sites: int) -> NDArray[np.float32]:
    """A site's average, with all its checks. Raises: AggregateOutOfBounds"""
    grid = parameters.weight_grid * sites
    longest = longest_sum(parameters, grid, sites)
    opener = AverageOpener(seed, longest, float(sites), parameters)
    average = np.empty(parameters.dimension, dtype=np.float32)
    opener.open_into(average, served, 0)
    opener.finish()
    return average


# --- server B alters the vector that it serves, where no tag covers it ------------------------------------------------

_PARAMETERS: Final = StudyParameters(dimension=400, clip_norm=1.0, least_contributors=3)
_SITES: Final = 5
_MASK: Final = bytes(range(32))
_NOTICEABLE: Final = 0.05
"""Rounding moves an average by less than a ten thousandth of a clip norm."""
_HALF_A_NORM: Final = int(_PARAMETERS.encoded_norm * 0.5)
Alter = Callable[[Ring, list[Ring]], Ring]


def _altered(alter: Alter, _: Path) -> Found:
    """The figure is how far the average that the site would apply lies from the true one, in clip norms."""
    draw = np.random.default_rng(11)
    updates = [clip(draw.normal(size=_PARAMETERS.dimension), 1.0)[0] for _ in range(_SITES)]
    encoded = [encode(u, _PARAMETERS, bytes([i]) * 32) for i, u in enumerate(updates)]
    at_b = [split(x, derive(_MASK, f"share {i}"))[1].vector for i, x in enumerate(encoded)]
    at_a = [x - b for x, b in zip(encoded, at_b, strict=True)]
    a, b = (sum_chunk([source(one) for one in shares], 0, _PARAMETERS.dimension) for shares in (at_a, at_b))
    served = alter(combine_chunk(masked_sum_chunk(a, _MASK, 0), b), at_b)
    try:
        average = _opened(served, _MASK, _PARAMETERS, _SITES)
    except AggregateOutOfBounds:
        return Found(False, 0.0)
    moved = float(np.linalg.norm(average - np.mean(updates, axis=0)))
    return Found(moved > _NOTICEABLE, moved)


def _plus(units: int, places: int | slice) -> Alter:
    def alter(served: Ring, at_b: list[Ring]) -> Ring:
        altered = served.copy()
        altered[places] += np.uint64(units)
        return altered

    return alter


_ALTERED: Final[Mapping[str, Alter]] = {
    "sum-plus-two-to-the-63": _plus(2**63, 7),
    "sum-plus-a-hundred-norms": _plus(200 * _HALF_A_NORM, 3),
    "sum-plus-a-constant": _plus(2 * _HALF_A_NORM, slice(None)),
    # B leaves a site out that A adds: what is left is A's half of that site's vector, which is uniform.
    "sum-without-a-site": lambda served, at_b: served - at_b[0],
    "sum-with-a-site-twice": lambda served, at_b: served + at_b[0],
    "sum-plus-half-a-norm": _plus(_HALF_A_NORM, 3),
}


def _passed_by_a_server(folder: Path) -> Found:
    """A site tells server B both shares of a vector with 2^63 in it; B then answers the range check to fit."""
    hostile = wrap_around_entry(small_update(np.random.default_rng(31), SMALL))
    honest = sketch.range_operand
    with pair_in_memory(folder) as pair:
        opened = pair.round(updates={VICTIM: hostile})
        share_b = np.frombuffer(opened.honest[VICTIM][Side.B].plain, dtype="<u8")

        def fitted(side: Side, values: Ring, *how: Any) -> Ring:  # noqa: ANN401  # challenge, parameters, kernels
            if side is Side.B and np.array_equal(values, share_b):
                return honest(Side.A, hostile - share_b, *how)
            return honest(side, values, *how)

        with replaced(sketch, "range_operand", fitted):
            opened.sites.announce(opened.announcement)
            opened.lock()
            opened.measure()
            passed = opened.in_range()[VICTIM]
            opened.release(opened.agreed)
        total = opened.sites.output(SITES[3], opened.number)
        parameters = opened.sites.study.parameters
    if not passed:
        return Found(False, 0.0, "the range check did not pass")
    try:
        average = _opened(masked_sum_chunk(total, bytes(32), 0), bytes(32), parameters, len(SITES))
    except AggregateOutOfBounds as refused:
        return Found(False, 0.0, refused.detail)
    moved = float(np.linalg.norm(average)) / parameters.clip_norm
    return Found(moved > 1, moved)


# --- rounds with tags -------------------------------------------------------------------------------------------------

_ROUNDS: Final = 12
_SEED: Final = bytes(range(64, 96))
_NO_ERROR: Final[Mapping[str, object]] = {"protocol.tags.sum_of": lambda checks: np.zeros(2, dtype=np.uint64)}
_NO_TAGS: Final[Mapping[str, object]] = {
    "protocol.protection.shares.CheckedHalves._kept_tags_fit": lambda halves: True,
    "protocol.protection.shares.CheckedHalves._require_shown_tags": passes,
}


def _rounds(reached: Callable[[TaggedRound], bool], steps: Mapping[str, Callable[..., object]], _: Path) -> Found:
    """Twelve rounds in which these steps of a tagged round are the attacker's."""
    of = deviating(**steps)
    rounds = (of(derive(_SEED, f"round {number}"), number) for number in range(1, _ROUNDS + 1))
    count = sum(reached(one) for one in rounds)
    return Found(count > 0, count)


def _is_opened(turn: TaggedRound) -> bool:
    """Return whether the servers serve, and an honest site opens an average and uses it."""
    try:
        if not turn.goes:
            return False
        turn.opened(CONTRIBUTORS[1])
    except MoietyError:
        return False
    return True


def _is_unnoticed(turn: TaggedRound) -> bool:
    """A sum that is merely too large is tried again, and then nobody is to blame."""
    try:
        turn.opened(CONTRIBUTORS[1])
    except SumAltered as altered:
        return altered.sides != (Side.B.value,)
    except MoietyError:
        pass
    return turn.goes


def _is_discarded(turn: TaggedRound) -> bool:
    try:
        return not turn.goes or not np.allclose(turn.opened(CONTRIBUTORS[1]), turn.average, atol=1e-3)
    except MoietyError:
        return True


def _is_named(turn: TaggedRound) -> bool:
    try:
        return not turn.goes and turn.wrong().sites == (CONTRIBUTORS[1],)
    except MoietyError:
        return False


def _small_error(turn: TaggedRound) -> Ring:
    """Far below every bound."""
    return entry(turn.length, 3, 1000)


def _error_of(turn: TaggedRound) -> Ring:
    """In half of the rounds beyond the bound of a coordinate."""
    return _small_error(turn) << np.uint64(30 if turn.number % 4 < 2 else 0)


def _sum_plus(units: int, places: slice) -> Mapping[str, Callable[..., object]]:
    """Server B alters its half before it fixes it."""

    def summed(turn: TaggedRound, side: Side, own: Ring) -> Ring:
        if side is Side.B:
            own[places] += np.uint64(units)
        return own

    return {"summed": summed}


def _tag_plus(attacker: str, place: int, units: int) -> Callable[..., Ring]:
    """A site shares another number than its tag."""

    def shared(turn: TaggedRound, site: str, tagged: Ring) -> Ring:
        if site == attacker:
            tagged[place] += np.uint64(units)
        return tagged

    return shared


_FORGED: Final[Mapping[str, Callable[..., object]]] = {
    "summed": lambda turn, side, own: own + _error_of(turn) if side is Side.B else own,
    # Once it has the seed the server takes the error out of the check that it signs.
    "checked": lambda turn, side, errors: errors - turn.errors([_error_of(turn)])[0] if side is Side.B else errors,
}


def _other_half(turn: TaggedRound, half: Half) -> bytes:
    if half.kind is ShareKind.SEED:
        return half.content
    return (half.vector(turn.length) + _small_error(turn)).tobytes()


def _fitted_half(turn: TaggedRound, half: Half) -> bytes:
    """The shown tags in it fit the error."""
    if half.kind is ShareKind.SEED:
        return half.content
    error = _small_error(turn)
    error[-TAG_COORDINATES:][:PAIR] = turn.errors([error])[0]
    return (half.vector(turn.length) + error).tobytes()


def _other_seed(turn: TaggedRound, site: str) -> bytes:
    return bytes(32) if site == CONTRIBUTORS[1] else turn.tag_seed


def _goes(turn: TaggedRound, said: Go | TagsFailed) -> Go:
    return Go(**{name: getattr(said, name) for name in type(said).model_fields})


def _blames(_halves: object) -> NoReturn:
    """A site that takes wrong kept tags for a server's doing."""
    raise SumAltered("the kept tags are wrong", ())


def _tags(steps: Mapping[str, Callable[..., object]], *without: Mapping[str, object]) -> Attempt:
    return Attempt(partial(_rounds, _is_opened, steps), {name: one for some in without for name, one in some.items()})


ATTEMPTS: Final = {
    **{
        name: Attempt(partial(_altered, alter), _NO_BOUNDS if "half" not in name else {})
        for name, alter in _ALTERED.items()
    },
    "server-passes-a-site": Attempt(_passed_by_a_server, _NO_BOUNDS),
    "tags-plus-half-a-norm": _tags(_sum_plus(2**20, slice(3, 4)), _NO_ERROR, _NO_TAGS, _NO_BOUNDS),
    "tags-plus-a-constant": _tags(_sum_plus(2**10, slice(-TAG_COORDINATES)), _NO_ERROR, _NO_TAGS, _NO_BOUNDS),
    "tags-plus-two-to-the-63": _tags(_sum_plus(2**63, slice(3, 4)), _NO_ERROR, _NO_TAGS, _NO_BOUNDS),
    "tags-forged-check": Attempt(partial(_rounds, _is_unnoticed, _FORGED), _NO_TAGS),
    "tags-other-half-served": _tags({"served": _other_half}, _NO_TAGS),
    "tags-fitted-to-the-shown-key": _tags({"served": _fitted_half}, _NO_TAGS),
    "tags-wrong-among-sites": Attempt(
        partial(_rounds, _is_discarded, {"shared": _tag_plus("c1", -1, 1)}),
        {"protocol.protection.shares.CheckedHalves._kept_tags_fit": _blames},
    ),
    "tags-wrong-at-a-site": _tags({"shared": _tag_plus("c1", 1 - TAG_COORDINATES, 1)}, _NO_ERROR, _NO_TAGS),
    "tags-go-against-the-checks": _tags(
        {"shared": _tag_plus(REQUESTER, -TAG_COORDINATES, 5), "judged": _goes}, _NO_ERROR, _NO_TAGS
    ),
    "tags-other-seed": Attempt(
        partial(_rounds, _is_named, {"told_seed": _other_seed}),
        {"protocol.protection.shares.require_seed": lambda announcement, seed: bytes.fromhex(seed)},
    ),
}
