"""A site's memory, across studies, of the sums and cohorts that its data are in (docs/protocol.md 13, 17).

    sums/KEY/sketch.seed      32 random bytes, drawn once
             00000017.json    one round's weights, and who was summed once that is known
             00000017.f64     this site's update of that round, or its sketch
             forgotten.json   rounds that an operator said are lost for good
             without_sum.json rounds without a row of which both servers signed that no updates are summed in them
    cohorts/KEY/rounds.json   rounds of class counts and of summaries that were not skipped
                rounding.key  32 random bytes, drawn once: the same rows are counted the same for ever

Rows are numbered in the order in which rounds were agreed to, and stay for ever; updates as long as they count. An
update is written before the row that points to it, and everything before the first share of its round leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.site.identity import drawn_once, folder_of_key, read_remembered
from host.files import new_folder, write_durably
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import Real, Update
from protocol.errors import Clause, PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.cohorts import Cohort, check_cohort, check_questions
from protocol.policy.exposure import MOST_KEPT, Exposure, KnownSum, SummedRow, exposure, told_of_all
from protocol.policy.memory import KEPT_LENGTH, Layers, kept_update, sketched
from protocol.policy.site_policy import SitePolicy

RoundName = tuple[str, int]
"""A study's digest and a round's number."""
_SEED: Final = "sketch.seed"
_FORGOTTEN: Final = "forgotten.json"
_WITHOUT_SUM: Final = "without_sum.json"
_SUMS: Final = "sums"


def sum_memory(state_dir: Path, came_with: str, draw: Callable[[], bytes]) -> SumMemory:
    """The memory of the site that came with this signing key, whichever keys it has now and whichever study asks."""
    return SumMemory(folder_of_key(state_dir, _SUMS, came_with), draw)


class RememberedRow(Frozen, strict=True):
    """A round as it is kept; ``skipped`` once both servers signed that nothing was opened.

    ``proven``: the row holds all that the round can have opened, by what both servers signed or served, and not by the
    requester's word alone. Rows of versions before this field are not.
    """

    row: SummedRow
    skipped: bool = False
    proven: bool = False


class Rounds(Frozen):
    """Rounds that this memory has no row of: lost for good, or such in which no updates are summed."""

    rounds: tuple[RoundName, ...] = ()


class SumMemory:
    """The sums that one site's key knows of; all studies of an agent share it, one at a time.

    ``draw``: 32 bytes for the sketch, asked for once in the life of the folder.
    Raises: ConfigurationError when a file is not what was written
    """

    def __init__(self, folder: Path, draw: Callable[[], bytes]) -> None:
        self._folder = new_folder(folder)
        self._draw = draw
        self._lock = threading.RLock()
        rows = sorted(folder.glob("[0-9]*.json"))
        self._rows = {int(path.stem): read_remembered(path, RememberedRow, _SUMS) for path in rows}
        self._forgotten, self._without_sum = (
            frozenset(read_remembered(path, Rounds, _SUMS).rounds if path.exists() else ())
            for path in (folder / _FORGOTTEN, folder / _WITHOUT_SUM)
        )
        self.reconciled_at_s: float | None = None

    def kept(self, update: Update, layers: Layers = ()) -> Real:
        """Return the kept part of an update (protocol.policy.memory)."""
        return kept_update(update, self._seed(), layers)

    def weigh(self, row: SummedRow, kept: Real, colluders: int, *, told: bool) -> Exposure:
        """Return the exposure of everybody's updates once ``row`` is summed too."""
        with self._lock:
            known = self.known()
            if any(one.dimension > KEPT_LENGTH for one in (row, *(past.row for past in known))):
                known = [self._as_long(one) for one in known]
                newest = self._as_long(KnownSum(row, kept))
                row, kept = newest.row, np.asarray(newest.update)
            return exposure(known, row, kept, colluders=colluders, told=told)

    def propose(self, row: SummedRow, kept: Real, policy: SitePolicy, colluders: int) -> Exposure:
        """As ``agree``, at the requester before anything of the round has left: another list may take its place.

        A requester asked for every sum of its study itself, so it is told of all.
        """
        with self._lock:
            found = self.weigh(row, kept, colluders, told=True)
            check_isolation(found, row, policy)
            self._put(self._place(row.name) or self._next, row, kept, proven=True)
        return found

    def agree(self, row: SummedRow, kept: Real, policy: SitePolicy, colluders: int) -> Exposure:
        """Remember ``row`` durably, if the policy allows its sum; repeating it changes nothing.

        Requires: both servers signed its announcement
        Raises: PolicyRefusal, clause ``isolation``; then nothing is remembered
        """
        with self._lock:
            place = self._place(row.name)
            if place is not None and _promised(self._rows[place].row) != _promised(row):
                raise PolicyRefusal(
                    Clause.ISOLATION,
                    f"this site agreed to round {row.round} of this study with other weights before; one round has one "
                    "list",
                )
            found = self.weigh(row, kept, colluders, told=self.told_of_all(row))
            check_isolation(found, row, policy)
            self.remember(row, kept, proven=True)
        return found

    def remember(self, row: SummedRow, kept: Real | None, *, proven: bool) -> None:
        """Keep a row; None: this site was not in that sum, its nearest update stands in for it.

        ``proven``: as in :class:`RememberedRow`; an unproven sum counts, but does not account for its round.
        """
        with self._lock:
            if self._place(row.name) is None:
                self._put(self._next, row, kept, proven=proven)

    def told_of_all(self, row: SummedRow) -> bool:
        """Return whether every earlier round of the row's study is accounted for (protocol.policy.exposure)."""
        with self._lock:
            entries = [one for one in self._rows.values() if one.row.study_digest == row.study_digest]
            accounted = {one.row.round for one in entries if one.proven or one.skipped}
            accounted |= {number for study, number in self._without_sum if study == row.study_digest}
            return told_of_all(row, accounted)

    def accounted(self, name: RoundName) -> bool:
        """Return whether all that one round can have opened is known here, with no more to learn of how it ended."""
        with self._lock:
            place = self._place(name)
            if place is None:
                return name in self._without_sum
            entry = self._rows[place]
            return entry.skipped or (entry.proven and entry.row.settled)

    def rule_out(self, name: RoundName) -> None:
        """Both servers signed that this round sums no updates, by its purpose or because it was skipped."""
        with self._lock:
            if self._place(name) is None and name not in self._without_sum:
                rounds = self._without_sum | {name}
                self._write_rounds(_WITHOUT_SUM, rounds)
                self._without_sum = rounds

    def settle(self, name: RoundName, released: Sequence[str]) -> None:
        """A release that both servers showed named the sites that were summed; repeating it changes nothing."""
        with self._lock:
            place = self._place(name)
            if place is not None:
                entry = self._rows[place]
                row = entry.row.model_copy(update={"released": tuple(released)})
                self._write(place, RememberedRow(row=row, proven=True))

    def drop(self, name: RoundName) -> None:
        """Both servers signed that the round ended without a sum."""
        with self._lock:
            place = self._place(name)
            if place is None:
                self.rule_out(name)
            elif self._rows[place].row.released is None:
                self._write(place, self._rows[place].model_copy(update={"skipped": True}))
                self._vector(place).unlink(missing_ok=True)

    def known(self) -> list[KnownSum]:
        """The last rows, with what stands in for this site's update where it was not in the sum."""
        with self._lock:
            places = self._places()[-MOST_KEPT:]
            own = {place for place in places if self._vector(place).exists()}
            return [KnownSum(self._seen(place, own), self._update(self._nearest(place, own))) for place in places]

    def rounds(self) -> frozenset[RoundName]:
        with self._lock:
            return self._forgotten.union(entry.row.name for entry in self._rows.values())

    def forget(self, rounds: Sequence[RoundName]) -> None:
        """An operator's word that these rounds are lost: from now on they count for nothing."""
        with self._lock:
            self._forgotten = self._forgotten.union(rounds)
            self._write_rounds(_FORGOTTEN, self._forgotten)

    # --- files ---

    def _seed(self) -> bytes:
        """The sketch's seed. Raises: ConfigurationError when it is gone while sketches are here"""
        otherwise = "what is kept of updates can be compared under it alone"
        with self._lock:
            return drawn_once(self._folder / _SEED, self._draw, self._sketches, otherwise)

    def _sketches(self) -> bool:
        long = [place for place, entry in self._rows.items() if entry.row.dimension > KEPT_LENGTH]
        return any(self._vector(place).exists() for place in long)

    def _as_long(self, known: KnownSum) -> KnownSum:
        """With the sketch of what is kept of a short update; a long one's is kept as such."""
        row, update = known.row, known.update
        if update is not None and row.dimension <= KEPT_LENGTH:
            update = sketched(update, self._seed(), row.layers)
        return KnownSum(row.model_copy(update={"layers": ()}), update)

    @property
    def _next(self) -> int:
        return max(self._rows, default=0) + 1

    def _put(self, place: int, row: SummedRow, kept: Real | None, *, proven: bool) -> None:
        if kept is not None:
            write_durably(self._vector(place), kept.astype("<f8").tobytes())
        self._write(place, RememberedRow(row=row, proven=proven))
        for old in self._places()[:-MOST_KEPT]:
            self._vector(old).unlink(missing_ok=True)

    def _write(self, place: int, entry: RememberedRow) -> None:
        write_durably(self._folder / f"{place:08d}.json", entry.model_dump_json().encode())
        self._rows[place] = entry

    def _write_rounds(self, name: str, rounds: Set[RoundName]) -> None:
        write_durably(self._folder / name, Rounds(rounds=tuple(sorted(rounds))).model_dump_json().encode())

    def _vector(self, place: int) -> Path:
        return self._folder / f"{place:08d}.f64"

    def _place(self, name: RoundName) -> int | None:
        return next((place for place, entry in self._rows.items() if entry.row.name == name), None)

    def _places(self) -> list[int]:
        return sorted(place for place, entry in self._rows.items() if not entry.skipped)

    def _seen(self, place: int, own: Set[int]) -> SummedRow:
        row = self._rows[place].row
        return row if place in own else row.model_copy(update={"away": True})

    def _nearest(self, place: int, own: Set[int]) -> int | None:
        """The place itself, or that of the update of its length nearest to it: in its study by round, else by order."""
        if place in own:
            return place
        row = self._rows[place].row
        alike = [other for other in own if self._rows[other].row.dimension == row.dimension]

        def distance(other: int) -> tuple[int, int]:
            there = self._rows[other].row
            same = there.study_digest == row.study_digest
            return (0, abs(there.round - row.round)) if same else (1, abs(other - place))

        return min(sorted(alike), key=distance, default=None)

    def _update(self, place: int | None) -> Real | None:
        if place is None:
            return None
        return np.frombuffer(self._vector(place).read_bytes(), dtype="<f8").astype(np.float64)


def _promised(row: SummedRow) -> tuple[object, ...]:
    return row.weights, row.least, row.dimension


_ROUNDS: Final = "rounds.json"
_KEY: Final = "rounding.key"
_COHORTS: Final = "cohorts"


def cohort_memory(state_dir: Path, came_with: str, draw: Callable[[], bytes]) -> CohortMemory:
    """The memory of the site that came with this signing key, whichever keys it has now and whichever study asks."""
    return CohortMemory(folder_of_key(state_dir, _COHORTS, came_with), draw)


class Remembered(Frozen):
    """The contents of the file."""

    cohorts: tuple[Cohort, ...] = ()


class CohortMemory:
    """All studies of an agent share it, one at a time. ``draw``: 32 bytes, asked for once in the life of the folder.

    Raises: ConfigurationError when the file is not what was written
    """

    def __init__(self, folder: Path, draw: Callable[[], bytes]) -> None:
        self._folder = new_folder(folder)
        self._draw = draw
        self._lock = threading.RLock()
        kept = folder / _ROUNDS
        self._cohorts = read_remembered(kept, Remembered, _COHORTS).cohorts if kept.exists() else ()

    def rounds(self) -> frozenset[tuple[str, int]]:
        with self._lock:
            return frozenset(one.name for one in self._cohorts)

    def agree(self, cohort: Cohort, colluders: int, policy: SitePolicy) -> None:
        """Remember a round durably, if earlier ones allow it. Until its end is known, its last list counts.

        Raises: PolicyRefusal, clause ``cohort`` or ``question``; then nothing is remembered
        """
        with self._lock:
            check_cohort(cohort, self._cohorts, colluders, policy.most_cohorts)
            check_questions(cohort, self._cohorts, policy.most_questions)
            self.rounding_key()
            if not any(one.released is not None for one in self._of(cohort.name)):
                self._keep((*(one for one in self._cohorts if one.name != cohort.name), cohort))

    def settle(self, name: tuple[str, int], released: Sequence[str]) -> None:
        """A release named the contributors that were summed; repeating it changes nothing."""
        with self._lock:
            settled = {one: one.model_copy(update={"released": tuple(released)}) for one in self._of(name)}
            if settled:
                self._keep(tuple(settled.get(one, one) for one in self._cohorts))

    def drop(self, name: tuple[str, int]) -> None:
        """Both servers signed that the round ended without a sum."""
        with self._lock:
            if any(one.released is None for one in self._of(name)):
                self._keep(tuple(one for one in self._cohorts if one.name != name))

    def rounding_key(self) -> bytes:
        """Return the key that decides whether a count is rounded up. Raises: ConfigurationError"""
        otherwise = "under another key the same rows would be rounded otherwise"
        with self._lock:
            return drawn_once(self._folder / _KEY, self._draw, lambda: bool(self._cohorts), otherwise)

    def _of(self, name: tuple[str, int]) -> tuple[Cohort, ...]:
        return tuple(one for one in self._cohorts if one.name == name)

    def _keep(self, cohorts: tuple[Cohort, ...]) -> None:
        write_durably(self._folder / _ROUNDS, Remembered(cohorts=cohorts).model_dump_json().encode())
        self._cohorts = cohorts
