"""Exposure: what one more sum would give away together with those that a site knows of (docs/protocol.md 13).

A row is one round's weights over the contributors, the requester left out: what it adds to a sum it knows. Columns
are the sites' keys, so that rows of other studies over the same data count, whatever the sites are called there.

Some sums no site sees together: a site sees every sum that it was in. A requester with several studies can share its
questions out so that only the sums of all of them, together, show an update: {1, 2, 3} in one, {4, 5, 6} in another,
{2, 3, 4, 5, 6} in a third. For that, somebody's update must enter two sums over different sites nearly unchanged, or
nothing cancels, and that site sees both. So the same update goes into sums over the same sites only, where a site
cannot know what else was summed.

A sum of updates is one linear equation: row r of the weights R says y_r = sum_s R_rs u_rs + noise. Who knows sums and
weights takes the best linear estimate of u_ts, site s's update in row t. Under the prior that every site's updates
move as this site's own do, G_rr' = <u_r, u_r'>, and point elsewhere, its squared relative error is

    isolation_ts^2 = 1 - b' M^-1 b / G_tt          M = (R R') o G + diag(noise),   b_r = R_rs G_rt

1 means that the sums say nothing about the update, 0 that they say all. Estimates of older updates sharpen with every
new sum, and so do those of sites that a new list leaves out: all are looked at, not only the newest of one site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations, product, zip_longest
from typing import Annotated, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.arithmetic.fixed_point import Real
from protocol.errors import ProtocolViolation
from protocol.parameters import Record

Figures: TypeAlias = NDArray[np.float64]
_RIDGE: Final = 1e-12
"""Part of a sum's square added as noise to each: 1e-6 of its length, as accurate as sums in fixed point are."""
MOST_COALITIONS: Final = 1000
"""Sets of colluders that are tried; where there are more, nothing counts as isolated."""


@dataclass(frozen=True)
class Isolation:
    """Figures for several candidate lists: of the newest updates, and the least over those of all rows.

    Shapes:   both float64[lists, sites]; 1 where a site is in no sum
    """

    newest: Figures
    least: Figures


class SeenSums:
    """Sums that were opened, factored once; each further list then costs one row.

    Shapes:   weights float64[n, sites], gram float64[n, n], noise float64[n]: the squared length of each sum's noise
    Why:      ``colluders`` of the other sites tell their updates: for every site, the worst such set's columns go
    Raises:   ProtocolViolation when the shapes do not fit
    """

    def __init__(self, weights: Figures, gram: Figures, noise: Figures, *, colluders: int = 0) -> None:
        rows, sites = weights.shape
        if gram.shape != (rows, rows) or noise.shape != (rows,):
            raise ProtocolViolation(
                f"{rows} rows of weights need as many of the updates' products, found {gram.shape}, {noise.shape}"
            )
        told = max(0, min(colluders, sites - 1))
        self._shape = (rows, sites)
        self._seen: list[_WithoutColluders] = []
        if math.comb(sites, told) <= MOST_COALITIONS and _finite(weights, gram, noise):
            coalitions = combinations(range(sites), told)
            with suppress(np.linalg.LinAlgError):  # no covariance: nothing is known, so nothing is isolated
                self._seen = [_WithoutColluders(weights, gram, noise, coalition) for coalition in coalitions]

    def figures(self) -> Figures:
        """Each site's isolation in each row, with all rows seen.

        Shapes:   -> float64[n, sites]; 1 where a site is not in the row's sum
        """
        return _worst([seen.figures() for seen in self._seen], self._shape)

    def after(self, lists: Figures, products: Figures, square: float, noise: float) -> Isolation:
        """Every site's isolation once a sum with the weights of one of ``lists`` is opened too.

        Shapes:   lists float64[lists, sites]; products float64[n]: of the newest update with those before;
                  ``square`` of the newest update with itself
        """
        usable = square > 0 and _finite(lists, products, np.array([square, noise]))
        both = [seen.after(lists, products, square, noise) for seen in self._seen] if usable else []
        return Isolation(
            newest=_worst([newest for newest, _ in both], lists.shape),
            least=_worst([least for _, least in both], lists.shape),
        )


class _WithoutColluders:
    """The sums with the columns of one coalition taken out; its own updates are nobody's secret."""

    def __init__(self, weights: Figures, gram: Figures, noise: Figures, coalition: tuple[int, ...]) -> None:
        self._coalition = list(coalition)
        self._weights = self._cut(weights)
        self._gram = gram
        own = np.diag(gram)
        self._length = _lengths(np.sum(self._weights**2, axis=1) * own + noise)
        scaled = (self._weights @ self._weights.T) * gram / np.outer(self._length, self._length)
        np.fill_diagonal(scaled, 1 + _RIDGE)
        self._solve = _inverse_factor(scaled)
        self._rows, self._columns = np.nonzero((self._weights != 0) & (own > 0)[:, None])
        aims = self._weights[:, self._columns] * gram[:, self._rows] / self._length[:, None]
        self._aims = self._solve @ aims
        self._squares = own[self._rows]
        self._explained = np.sum(self._aims**2, axis=0)

    def figures(self) -> Figures:
        table = np.ones(self._weights.shape)
        table[self._rows, self._columns] = _isolation(self._explained / self._squares)
        return table

    def after(self, lists: Figures, products: Figures, square: float, noise: float) -> tuple[Figures, Figures]:
        lists = self._cut(lists)
        length = _lengths(np.sum(lists**2, axis=1) * square + noise)
        met = (self._weights @ lists.T) * products[:, None] / np.outer(self._length, length)
        seen = self._solve @ met
        rest = np.maximum(1 + _RIDGE - np.sum(seen**2, axis=0), _RIDGE)
        newest = self._newest(lists, products, square, length, seen, rest)
        fresh = lists[:, self._columns] * products[self._rows] / length[:, None]
        explained = self._explained + (fresh - seen.T @ self._aims) ** 2 / rest[:, None]
        older = _isolation(explained / self._squares)
        least = newest.copy()
        np.minimum.at(least.T, self._columns, older.T)
        return newest, least

    def _newest(
        self, lists: Figures, products: Figures, square: float, length: Figures, seen: Figures, rest: Figures
    ) -> Figures:
        aims = self._solve @ (self._weights * products[:, None] / self._length[:, None])
        fresh = lists * square / length[:, None]
        explained = np.sum(aims**2, axis=0) + (fresh - seen.T @ aims) ** 2 / rest[:, None]
        return np.where(lists != 0, _isolation(explained / square), 1.0)

    def _cut(self, weights: Figures) -> Figures:
        cut = np.array(weights, dtype=np.float64)
        cut[:, self._coalition] = 0
        return cut


def _inverse_factor(scaled: Figures) -> Figures:
    """L^-1 of M = L L', for a matrix with a diagonal of ones and a little more."""
    return np.linalg.inv(np.linalg.cholesky(scaled)) if len(scaled) else scaled


def _worst(figures: Sequence[Figures], shape: tuple[int, ...]) -> Figures:
    return np.minimum.reduce(figures) if figures else np.zeros(shape)


def _lengths(squares: Figures) -> Figures:
    """1 for a sum of nothing, which explains nothing."""
    return np.where(squares > 0, np.sqrt(np.maximum(squares, 0)), 1.0)


def _isolation(explained: Figures) -> Figures:
    """Turn the explained part of a square into the relative error. NaN counts as wholly explained."""
    return np.sqrt(np.minimum(np.fmax(1 - explained, 0.0), 1.0))


def _finite(*arrays: Figures) -> bool:
    return all(bool(np.all(np.isfinite(array))) for array in arrays)


UNKNOWN_REQUESTER: Final = ""
"""The caller is not known: it may be anybody."""


class SummedWeight(Record):
    """The weight of one site's update in a sum; ``site`` is its key's fingerprint."""

    site: str
    weight: Annotated[float, Field(gt=0, le=1)]


class SummedRow(Record):
    """One round's sum, or the sums that its announcement admits while nobody has shown how it ended.

    ``released`` are the contributors whose sum was opened, None while that is unknown; ``least`` is the announced
    least number of them. ``dimension`` is the length of an update, ``layers`` the names and sizes that make it up,
    ``noise`` the squared length of the sum's noise. ``own`` is set where sites weigh themselves: its weight, the
    only one that this site knows; the others' are a guess. ``requester`` is the key of the site that asked for it,
    ``model_version`` is the announced one, on which nothing rests. ``away``, which is not stored:
    this site was not in the sum, and another of its updates stands in for it. ``servers_noise`` stands in rows that
    older versions stored; it is not used.
    """

    study_digest: str
    round: Annotated[int, Field(ge=1)]
    dimension: Annotated[int, Field(ge=1)]
    weights: tuple[SummedWeight, ...]
    least: Annotated[int, Field(ge=0)]
    released: tuple[str, ...] | None = None
    noise: Annotated[float, Field(ge=0)] = 0.0
    own: SummedWeight | None = None
    layers: tuple[tuple[str, int], ...] = ()
    requester: str = UNKNOWN_REQUESTER
    model_version: Annotated[int, Field(ge=0)] = 0
    servers_noise: float = Field(default=0.0, exclude=True)
    away: bool = Field(default=False, exclude=True)

    @property
    def name(self) -> tuple[str, int]:
        """Study and round."""
        return self.study_digest, self.round

    @property
    def settled(self) -> bool:
        """True if a release named who was summed."""
        return self.released is not None

    @property
    def possible(self) -> int:
        """In how many ways the round can have ended."""
        return 1 if self.settled else release_sets_number(len(self.weights), self.least)

    def sums(self) -> tuple[tuple[str, ...], ...]:
        """The sets of contributors of which one was summed, as far as is known."""
        if self.released is not None:
            return (self.released,)
        return release_sets(tuple(weight.site for weight in self.weights), self.least)


def release_sets_number(listed: int, least: int) -> int:
    """Return the number of release sets that an announcement admits; 1 where it admits none: nothing is opened."""
    return sum(math.comb(listed, size) for size in range(least, listed + 1)) or 1


def release_sets(listed: Sequence[str], least: int) -> tuple[tuple[str, ...], ...]:
    """Every release set that an announcement admits, without the requester; the whole list first.

    Those count too that leave a site out: their sum may complete an older one. Where there are too few for any, as
    after a refusal of one whom the sum needed, nothing is opened, and the rounds before count as they did.
    """
    sizes = range(len(listed), least - 1, -1)
    return tuple(chosen for size in sizes for chosen in combinations(listed, size)) or ((),)


_FEW: Final = 4
_PARALLEL: Final = 1e-9
"""The part of its length that is left of an update that others explain: rounding."""


def told_of_all(row: SummedRow, accounted: Set[int]) -> bool:
    """Return whether a site knows what every earlier round of ``row``'s study opened. Counting sums would not do.

    ``accounted`` are the study's rounds of which it knows all that they can have opened: a row of everything that the
    announcement which both servers signed admits, or both servers' word that no updates were summed. Rounds are
    numbered from 1 on without a gap and announced once, so that none can hide behind another one, and a sum that left
    the model as it was is asked for like any other.
    """
    return all(number in accounted for number in range(1, row.round))


def linked_error(
    past: Sequence[SummedRow], row: SummedRow, updates: Real, *, colluders: int, told: bool = False
) -> float:
    """Relative error of one update in ``row``'s sum, were everything known that other sites' sums can say.

    Of the n updates in the sum each but one is then known as well as updates in older sums tell it: up to the part that
    this site's own newest update has at right angles to a few of those. Those parts point anywhere, so together they
    are sqrt(n) times as long. A few: in a small model many random updates span everything, and say nothing.
    ``told``: :func:`told_of_all`; where that is not proven, sums of the same study are linked like others.

    Shapes:   updates float64[len(past) + 1, k]: this site's, or what stands in for them; the newest is the last
    Returns:  infinity where no older sum is linked with this one
    """
    linked = updates[:-1][[_linked(row, one, blind_within=not told, colluders=colluders) for one in past]]
    weights = np.array([one.weight for one in row.weights])
    if not len(linked) or not weights.size:
        return float("inf")
    return _part_across(linked, updates[-1]) * float(np.linalg.norm(weights) / np.max(weights))


def _linked(row: SummedRow, past: SummedRow, *, blind_within: bool, colluders: int) -> bool:
    """Return whether an older sum shares some sites, not all, and unknown sums may complete it.

    ``blind_within``: this site may not know of all sums of the same study.
    """
    if past.study_digest == row.study_digest and (past.away or not blind_within):
        return False
    requesters = {past.requester, row.requester}
    if not colluders and len(requesters) > 1 and UNKNOWN_REQUESTER not in requesters:
        return False
    before = {weight.site for weight in past.weights} if past.released is None else set(past.released)
    now = {weight.site for weight in row.weights}
    return before != now and bool(before & now)


def _part_across(others: Real, newest: Real) -> float:
    """The part of the newest update, of its length, that no few of the others explain. What is no number: 0.

    The others are taken one by one, each time the one nearest to what is left; of a short update fewer than four.
    """
    if not (np.all(np.isfinite(others)) and np.all(np.isfinite(newest)) and np.any(newest)):
        return 0.0
    lengths = np.linalg.norm(others, axis=1)
    rest, left = others[lengths > 0] / lengths[lengths > 0, None], newest / np.linalg.norm(newest)
    for _ in range(min(_FEW, max(1, newest.size // 4))):
        lengths = np.linalg.norm(rest, axis=1)
        rest = rest[lengths > _PARALLEL] / lengths[lengths > _PARALLEL, None]
        if not len(rest):
            break
        nearest = rest[np.argmax(np.abs(rest @ left))]
        left = left - (left @ nearest) * nearest
        rest = rest - np.outer(rest @ nearest, nearest)
    return float(np.linalg.norm(left))


MOST_ROWS: Final = 200
MOST_KEPT: Final = 2000
"""Rows of which something is kept; half of those that count are the nearest to the newest update, however old."""
MOST_RELEASE_SETS: Final = 500
_MOST_PASTS: Final = 32
"""Ways in which unsettled rounds may have ended that are tried one by one; beyond, all of them count at once."""
_MOST_SUMS: Final = 3 * MOST_ROWS
"""Sums that may count at once; beyond, nothing counts as isolated."""


@dataclass(frozen=True)
class KnownSum:
    """A row with the site's own update, kept as :func:`protocol.policy.memory.kept_update` says.

    ``update`` is a stand-in where the site was not in the sum, or None: then the newest one stands in.
    """

    row: SummedRow
    update: Real | None


@dataclass(frozen=True)
class Exposure:
    """The worst that one more sum would give away, over all release sets that its announcement admits.

    ``newest`` is the isolation of each listed site's newest update, ``least`` the smallest of all updates that the
    sums hold, ``of`` the key of the site that it belongs to. ``linked`` is the relative error that is left together
    with sums that this site may not know of, infinity where there can be none.
    """

    newest: Mapping[str, float]
    least: float
    of: str
    linked: float = math.inf


def exposure(
    past: Sequence[KnownSum], row: SummedRow, update: Real, *, colluders: int = 0, told: bool = False
) -> Exposure:
    """Every contributor's isolation once ``row`` is summed too, this site's updates standing in for everybody's.

    An earlier word about the same round is replaced. Updates of other lengths are compared over what their first,
    second, ... layers have in common: a model with one class more is nearly the same. Where sites weigh themselves the
    others' weights count as the smallest, as this site's own and as 1, whichever is worst. Never raises for numbers:
    what cannot be computed counts as exposed. ``told``: :func:`protocol.policy.exposure.told_of_all`, for ``linked``.
    """
    name = row.name
    others = [known for known in past if known.row.name != name]
    updates = _side_by_side([*others, KnownSum(row, update)])
    linked = linked_error([known.row for known in others], row, updates, colluders=colluders, told=told)
    counting = _counting(updates)
    updates = updates[[*counting, -1]]
    gram, rows = updates @ updates.T, [others[place].row for place in counting]
    return replace(_worst_guess(rows, row, gram, colluders), linked=linked)


def _worst_guess(rows: Sequence[SummedRow], row: SummedRow, gram: Figures, colluders: int) -> Exposure:
    guesses = (None, 0.0, 1.0) if any(one.own is not None for one in (*rows, row)) else (None,)
    found = [_exposure([_guessed(one, g) for one in rows], _guessed(row, g), gram, colluders) for g in guesses]
    worst = min(found, key=lambda one: one.least)
    newest = {site: min(one.newest[site] for one in found) for site in worst.newest}
    return Exposure(newest=newest, least=worst.least, of=worst.of)


@dataclass(frozen=True, eq=False)
class _Opened:
    """The past rows and the new one, without any update; ``lists`` is None where not all can be examined.

    Shapes:   lists float64[sums of the new row, sites]; ``ways``: for each way in which the past rows may have ended
              the rows' places [n], weights float64[n, sites] and noise float64[n]
    """

    sites: list[str]
    listed: frozenset[str]
    lists: Figures | None
    ways: list[tuple[list[int], Figures, Figures]]


@dataclass(frozen=True, eq=False)
class _SameRows:
    """Rows that are told from others by being the same objects, which costs nothing; a row does not change."""

    rows: tuple[SummedRow, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameRows) and list(map(id, self.rows)) == list(map(id, other.rows))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.rows)))


def _exposure(past: Sequence[SummedRow], row: SummedRow, gram: Figures, colluders: int) -> Exposure:
    """``gram``: products of the past rows' updates and, last, the newest one."""
    opened = _opened(_SameRows((*past, row)))
    sites, lists = opened.sites, opened.lists
    if lists is None:
        return Exposure(newest=dict.fromkeys(opened.listed, 0.0), least=0.0, of=sites[0] if sites else "")
    newest, least = np.ones(len(sites)), np.ones(len(sites))
    for places, weights, noise in opened.ways:
        seen = SeenSums(weights, gram[np.ix_(places, places)], noise, colluders=colluders)
        figures = seen.after(lists, gram[-1, places], float(gram[-1, -1]), row.noise)
        newest = np.minimum(newest, figures.newest.min(axis=0))
        least = np.minimum(least, figures.least.min(axis=0))
    worst = int(np.argmin(least))
    own = {site: float(figure) for site, figure in zip(sites, newest, strict=True) if site in opened.listed}
    return Exposure(newest=own, least=float(least[worst]), of=sites[worst])


@lru_cache(maxsize=2)
def _opened(known: _SameRows) -> _Opened:
    """Once for all sites that know of the same sums: in a simulation every site asks, one after the other."""
    *past, row = known.rows
    sites, listed = _columns(known.rows), frozenset(weight.site for weight in row.weights)
    if not listed or not _countable(past, row):
        return _Opened(sites, listed, None, [])
    ways = []
    for rows in _pasts(past, sites):
        places = [place for place, _ in rows]
        weights = np.stack([one for _, one in rows]) if rows else np.zeros((0, len(sites)))
        ways.append((places, weights, np.array([past[place].noise for place in places])))
    return _Opened(sites, listed, np.stack([_weights(row, chosen, sites) for chosen in row.sums()]), ways)


def _counting(updates: Real) -> list[int]:
    """The newest sums before the last one, and of the older ones those whose updates point as its own, or against it.

    Why: by age alone, some hundred sums over another model would make a site forget, and the old one could come again.
    """
    past, newer = len(updates) - 1, MOST_ROWS // 2
    if past < MOST_ROWS:
        return list(range(past))
    older = updates[: past - newer]
    lengths = np.linalg.norm(older, axis=1)
    nearness = np.abs(older @ updates[-1]) / np.where(lengths > 0, lengths, 1.0)
    nearest = np.argsort(-nearness, kind="stable")[: MOST_ROWS - 1 - newer]
    return [*sorted(int(place) for place in nearest), *range(past - newer, past)]


def _side_by_side(sums: Sequence[KnownSum]) -> Real:
    """A row for each update, its first, second, ... layer in the same columns, with zeros behind the shorter ones.

    By their places and not by their names: a model can be served again under other names.
    """
    newest = sums[-1]
    found = [newest if known.update is None else known for known in sums]
    sizes = [_sizes(known) for known in found]
    if sizes.count(sizes[0]) == len(sizes):
        return np.array([known.update for known in found], dtype=np.float64)
    widths = [max(at_place) for at_place in zip_longest(*sizes, fillvalue=0)]
    starts = [0, *accumulate(widths)]
    table: Real = np.zeros((len(found), starts[-1]))
    for into, known, own in zip(table, found, sizes, strict=True):
        first, update = 0, np.asarray(known.update)
        for start, size in zip(starts, own, strict=False):
            into[start : start + size] = update[first : first + size]
            first += size
    return table


def _sizes(known: KnownSum) -> tuple[int, ...]:
    """The layers of what is kept; a sketch is one."""
    length, sizes = np.asarray(known.update).size, tuple(size for _, size in known.row.layers)
    return sizes if sum(sizes) == length else (length,)


def _guessed(row: SummedRow, weight: float | None) -> SummedRow:
    """The row with the others' weights guessed as ``weight``, 0: as the own one; None leaves it as it is."""
    own = row.own
    if own is None or weight is None:
        return row
    guess = weight or own.weight
    weights = tuple(one if one.site == own.site else SummedWeight(site=one.site, weight=guess) for one in row.weights)
    return row.model_copy(update={"weights": weights})


def _countable(past: Sequence[SummedRow], row: SummedRow) -> bool:
    if row.possible > MOST_RELEASE_SETS:
        return False
    ways = [one.possible for one in past]
    return math.prod(ways) <= _MOST_PASTS or sum(ways) <= _MOST_SUMS


def _columns(rows: Sequence[SummedRow]) -> list[str]:
    return sorted({weight.site for row in rows for weight in row.weights})


def _weights(row: SummedRow, chosen: Sequence[str], sites: Sequence[str]) -> Figures:
    of = {weight.site: weight.weight for weight in row.weights if weight.site in chosen}
    return np.array([of.get(site, 0.0) for site in sites])


def _pasts(rows: Sequence[SummedRow], sites: Sequence[str]) -> list[list[tuple[int, Figures]]]:
    """Each way in which the rows may have ended: the rows' places and weights.

    Too many ways make one, in which all sums were opened: more sums never hide an update better.
    """
    ends = [[(place, _weights(row, chosen, sites)) for chosen in row.sums()] for place, row in enumerate(rows)]
    if math.prod(row.possible for row in rows) <= _MOST_PASTS:
        return [list(past) for past in product(*ends)]
    return [[one for ways in ends for one in ways]]
