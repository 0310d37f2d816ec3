"""The store over SQLAlchemy: SQLite (WAL, synchronous=FULL) by default, PostgreSQL by URL."""

from __future__ import annotations

from sqlalchemy import select

from servers.store import tables as t
from servers.store.contributions import ContributionRows
from servers.store.for_people import Kept
from servers.store.forgetting import ForgettingRows
from servers.store.histories import HistoryRows
from servers.store.mail import MailRows
from servers.store.requests import RequestRows
from servers.store.rounds import RoundRows
from servers.store.several.alone import Alone
from servers.store.several.leases import LeaseRows
from servers.store.studies import StudyRows


class SqlStore(
    StudyRows, RoundRows, ContributionRows, MailRows, RequestRows, ForgettingRows, HistoryRows, LeaseRows, Alone
):
    """See ``interface.Store``. The schema must exist: ``migrate.upgrade``."""

    def files(self) -> set[str]:
        return {name for names in self.kept().values() for name in names}

    def kept(self) -> dict[Kept, tuple[str, ...]]:
        columns = {
            Kept.SHARES: t.contributions.c.file,
            Kept.QUERIES: t.rounds.c.query_file,
            Kept.OUTPUTS: t.rounds.c.output_file,
            Kept.LETTERS: t.mail.c.file,
        }
        with self._begin() as connection:
            return {
                kind: tuple(connection.execute(select(column).where(column.is_not(None))).scalars())
                for kind, column in columns.items()
            }
