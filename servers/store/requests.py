"""Requests in the database: their nonces, and what was refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import DatabaseError

from protocol.errors import BadSignature
from servers.store import tables as t
from servers.store.database import Database, explained
from servers.store.reading.prepared import Prepared
from servers.store.records import Refusal

MOST_REFUSALS: Final = 100
_ADD_NONCE: Final = Prepared(insert(t.nonces))


class RequestRows(Database):
    """See ``interface.Store``."""

    def remember_nonce(self, party: str, nonce: str, now_s: float) -> None:
        try:
            with self._of_nonces.begin() as connection:
                self._run(connection, _ADD_NONCE, {"party": party, "nonce": nonce, "seen_at_s": now_s})
        except self._driver.IntegrityError:
            raise BadSignature(
                "this request's nonce came before: a request that is sent again takes a new nonce and signature"
            ) from None
        except (DatabaseError, self._driver.DatabaseError) as error:
            raise explained(error) from error

    def purge_nonces(self, before_s: float) -> None:
        try:
            with self._of_nonces.begin() as connection:
                connection.execute(delete(t.nonces).where(t.nonces.c.seen_at_s < before_s))
        except DatabaseError as error:
            raise explained(error) from error

    def last_heard_of_s(self, party: str) -> float | None:
        newest = select(func.max(t.nonces.c.seen_at_s)).where(t.nonces.c.party == party)
        with self._begin() as connection:
            return connection.execute(newest).scalar()

    def add_refusal(self, refusal: Refusal) -> None:
        c = t.refusals.c
        mine = select(func.count()).select_from(t.refusals).where(c.study == refusal.study, c.party == refusal.party)
        with self._begin() as connection:
            if connection.execute(mine).scalar_one() < MOST_REFUSALS:
                connection.execute(insert(t.refusals).values(asdict(refusal)))

    def refusals(self, study: str) -> list[Refusal]:
        with self._begin() as connection:
            rows = connection.execute(
                select(t.refusals).where(t.refusals.c.study == study).order_by(t.refusals.c.id)
            ).all()
        return [Refusal(row.study, row.party, row.code, row.detail, row.at_s) for row in rows]
