"""Rounds in the database: every attempt's record, its answers, and the correlations it used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from protocol.errors import CorrelationReused
from protocol.rounds.states import RoundKey
from servers.store import tables as t
from servers.store.database import Database, at, forget
from servers.store.interface import Answer, AnswerKind, CorrelationUse, RoundRecord
from servers.store.rows import round_record, round_row, use_row


class RoundRows(Database):
    """See ``interface.Store``."""

    def add_round(self, record: RoundRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.rounds).values(round_row(record)))
            self._touch(connection, record.key.study)

    def round(self, key: RoundKey) -> RoundRecord | None:
        with self._begin() as connection:
            row = connection.execute(select(t.rounds).where(*at(t.rounds, key))).one_or_none()
        return None if row is None else round_record(row)

    def current_round(self, study: str) -> RoundRecord | None:
        with self._begin() as connection:
            row = connection.execute(
                select(t.rounds)
                .where(t.rounds.c.study == study)
                .order_by(t.rounds.c.round.desc(), t.rounds.c.attempt.desc())
                .limit(1)
            ).one_or_none()
        return None if row is None else round_record(row)

    def latest_attempt(self, study: str, number: int) -> RoundRecord | None:
        with self._begin() as connection:
            row = connection.execute(
                select(t.rounds)
                .where(t.rounds.c.study == study, t.rounds.c.round == number)
                .order_by(t.rounds.c.attempt.desc())
                .limit(1)
            ).one_or_none()
        return None if row is None else round_record(row)

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
            row = connection.execute(select(t.rounds).where(*at(t.rounds, key))).one()
            changed = change(round_record(row))
            connection.execute(update(t.rounds).where(*at(t.rounds, key)).values(round_row(changed)))
            self._mark_used(connection, used)
            for answer in answers:
                connection.execute(insert(t.answers).values(**asdict(key), **asdict(answer)))
            if then_add is not None:
                connection.execute(insert(t.rounds).values(round_row(then_add)))
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
        with self._begin() as connection:
            return forget(connection, t.rounds, "output_file", study, before_round)

    def _mark_used(self, connection: Connection, used: Sequence[CorrelationUse]) -> None:
        try:
            if used:
                connection.execute(insert(t.correlations), [use_row(use) for use in used])
        except IntegrityError:
            raise CorrelationReused(
                f"a correlation of {used[0].key.label} has been used before; a correlation serves one product, ever: "
                "burn the attempt and make new ones"
            ) from None
