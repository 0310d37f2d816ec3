"""Rounds in the database: every attempt's record, its answers, and the correlations it used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from protocol.errors import CorrelationReused
from protocol.messages.control import RoundState
from protocol.rounds.states import RoundKey
from servers.store import tables as t
from servers.store.database import Database, at, at_any, forget, key_values
from servers.store.for_people import SeenRound
from servers.store.reading.prepared import Prepared
from servers.store.records import Answer, AnswerKind, CorrelationUse
from servers.store.rows import round_record, round_row, use_row
from servers.store.study_records import RoundRecord

_ROUND: Final = Prepared(select(t.rounds).where(*at_any(t.rounds)))
_CURRENT: Final = Prepared(
    select(t.rounds)
    .where(t.rounds.c.study == bindparam("study"))
    .order_by(t.rounds.c.round.desc(), t.rounds.c.attempt.desc())
    .limit(1)
)
_LATEST: Final = Prepared(
    select(t.rounds)
    .where(t.rounds.c.study == bindparam("study"), t.rounds.c.round == bindparam("round"))
    .order_by(t.rounds.c.attempt.desc())
    .limit(1)
)


class RoundRows(Database):
    """See ``interface.Store``."""

    def add_round(self, record: RoundRecord) -> None:
        with self._begin() as connection:
            self._insert(connection, record)
            self._touch(connection, record.key.study)

    def round(self, key: RoundKey) -> RoundRecord | None:
        return self._remembered(_ROUND, key_values(key), round_record)

    def current_round(self, study: str) -> RoundRecord | None:
        return self._remembered(_CURRENT, {"study": study}, round_record)

    def latest_attempt(self, study: str, number: int) -> RoundRecord | None:
        return self._remembered(_LATEST, {"study": study, "round": number}, round_record)

    def change_round(
        self,
        key: RoundKey,
        change: Callable[[RoundRecord], RoundRecord],
        *,
        used: Sequence[CorrelationUse] = (),
        answers: Sequence[Answer] = (),
        then_add: RoundRecord | None = None,
    ) -> RoundRecord:
        with self._begin() as connection:
            row = connection.execute(select(t.rounds).where(*at(t.rounds, key)).with_for_update()).one()
            changed = change(round_record(row))
            moved = {} if changed.state.value == row.state else {"state_since_s": self._clock()}
            connection.execute(update(t.rounds).where(*at(t.rounds, key)).values(round_row(changed) | moved))
            self._mark_used(connection, used)
            for answer in answers:
                connection.execute(insert(t.answers).values(**asdict(key), **asdict(answer)))
            if then_add is not None:
                self._insert(connection, then_add)
            self._touch(connection, key.study)
        return changed

    def mark_used(self, used: Sequence[CorrelationUse]) -> None:
        with self._begin() as connection:
            self._mark_used(connection, used)

    def correlations_used(self, key: RoundKey) -> int:
        with self._begin() as connection:
            count = connection.execute(
                select(func.count()).select_from(t.correlations).where(*at(t.correlations, key))
            ).scalar_one()
        return int(count)

    def answer(self, key: RoundKey, kind: AnswerKind) -> Answer | None:
        with self._begin() as connection:
            row = connection.execute(
                select(t.answers).where(*at(t.answers, key), t.answers.c.kind == kind.value)
            ).one_or_none()
        return None if row is None else Answer(AnswerKind(row.kind), row.request_digest, row.body)

    def forget_outputs(self, study: str, *, before_round: int) -> list[str]:
        since = self._without_output.get(study, 0)
        c = t.rounds.c
        masks = (c.study == study, c.round.between(since, before_round - 1), c.mask_seed.is_not(None))
        with self._begin() as connection:
            self._require_newest(connection)
            connection.execute(update(t.rounds).where(*masks).values(mask_seed=None))
            files = forget(connection, t.rounds, "output_file", study, (since, before_round))
        self._without_output[study] = max(since, before_round)
        return files

    def rounds_seen(self, study: str, limit: int) -> list[SeenRound]:
        c = t.rounds.c
        columns = (c.round, c.attempt, c.state, c.began_at_s, c.state_since_s, c.closes_at_s)
        newest = select(*columns).where(c.study == study).order_by(c.round.desc(), c.attempt.desc()).limit(limit)
        with self._begin() as connection:
            rows = connection.execute(newest).all()
        return [SeenRound(r.round, r.attempt, RoundState(r.state), *r[3:]) for r in rows]

    def _insert(self, connection: Connection, record: RoundRecord) -> None:
        times = dict.fromkeys(("began_at_s", "state_since_s"), self._clock())
        connection.execute(insert(t.rounds).values(round_row(record) | times))

    def _mark_used(self, connection: Connection, used: Sequence[CorrelationUse]) -> None:
        self._require_newest(connection)
        try:
            if used:
                connection.execute(insert(t.correlations), [use_row(use) for use in used])
        except IntegrityError:
            raise CorrelationReused(
                f"a correlation of {used[0].key.label} has been used before; a correlation serves one product, ever: "
                "burn the attempt and make new ones"
            ) from None
