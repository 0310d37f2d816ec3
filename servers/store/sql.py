"""The store over SQLAlchemy: SQLite (WAL, synchronous=FULL) by default, PostgreSQL by URL."""

from __future__ import annotations

from sqlalchemy import select

from servers.store import tables as t
from servers.store.contributions import ContributionRows
from servers.store.mail import MailRows
from servers.store.requests import RequestRows
from servers.store.rounds import RoundRows
from servers.store.studies import StudyRows


class SqlStore(StudyRows, RoundRows, ContributionRows, MailRows, RequestRows):
    """See ``interface.Store``. The schema must exist: ``migrate.upgrade``."""

    def files(self) -> set[str]:
        columns = (t.contributions.c.file, t.rounds.c.query_file, t.rounds.c.output_file, t.mail.c.file)
        with self._begin() as connection:
            return {
                name for column in columns for name in connection.execute(select(column)).scalars() if name is not None
            }
