"""Forget what a database holds of a study that is over: all that is confidential or large.

The signed messages of its rounds and the receipts for what sites sent stay: a site compares its memory of sums with
them, whatever study they are of (docs/protocol.md 13). So do correlations that were used, each bound for ever.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, FromClause, delete, func, or_, select, update

from servers.store import tables as t
from servers.store.database import Database
from servers.store.for_people import Holdings

_SECRETS: Final = (t.rounds.c.own_nonce, t.rounds.c.mask_seed, t.rounds.c.tag_seed)
_FILES: Final = (t.contributions.c.file, t.rounds.c.query_file, t.rounds.c.output_file, t.mail.c.file)


class ForgettingRows(Database):
    """See ``interface.Store``."""

    def holds_of(self, study: str) -> Holdings:
        with self._begin() as connection:
            named: list[str] = []
            for column in _FILES:
                of_study = (column.table.c.study == study, column.is_not(None))
                named += connection.execute(select(column).where(*of_study)).scalars()
            return Holdings(
                files=tuple(sorted(set(named))),
                letters=_count(connection, t.mail, t.mail.c.study == study),
                answers=_count(connection, t.answers, t.answers.c.study == study),
                rounds=_count(connection, t.rounds, t.rounds.c.study == study, _has_secrets()),
            )

    def forget_study(self, study: str) -> None:
        with self._begin() as connection:
            for table in (t.mail, t.answers):
                connection.execute(delete(table).where(table.c.study == study))
            shares = update(t.contributions).where(t.contributions.c.study == study)
            connection.execute(shares.values(file=None, wrapped_key=None, chunk_tags=None))
            emptied = {column.name: None for column in (*_SECRETS, t.rounds.c.query_file, t.rounds.c.output_file)}
            connection.execute(update(t.rounds).where(t.rounds.c.study == study).values(emptied))
            self._touch(connection, study)


def _has_secrets() -> ColumnElement[bool]:
    return or_(*(column.is_not(None) for column in _SECRETS))


def _count(connection: Connection, table: FromClause, *where: ColumnElement[bool]) -> int:
    return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())
