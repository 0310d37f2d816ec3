"""Studies in the database, and the sites that are ready for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, bindparam, insert, select, update

from protocol.errors import UnknownStudy
from servers.store import tables as t
from servers.store.database import Database
from servers.store.interface import A_NEW_STUDY
from servers.store.reading.prepared import Prepared
from servers.store.rows import study_record, study_row
from servers.store.study_records import StudyRecord

_NAMED: Final = Prepared(select(t.studies).where(t.studies.c.name == bindparam("name")))
_READY: Final = Prepared(select(t.ready_sites.c.site).where(t.ready_sites.c.study == bindparam("of_study")))
_WITH_DIGEST: Final = Prepared(select(t.studies).where(t.studies.c.digest == bindparam("digest")))
_HELD_ALONE: Final = select(t.studies.c.digest).where(t.studies.c.digest == bindparam("digest")).with_for_update()


class StudyRows(Database):
    """See ``interface.Store``."""

    def add_study(self, record: StudyRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.studies).values(study_row(record) | {"created_at_s": self._clock()}))
            self._touched += [record.digest, A_NEW_STUDY]

    def study_named(self, name: str) -> StudyRecord | None:
        return self._remembered(_NAMED, {"name": name}, study_record)

    def study(self, digest: str) -> StudyRecord:
        return self._known(self._remembered(_WITH_DIGEST, {"digest": digest}, study_record))

    def studies(self) -> list[StudyRecord]:
        with self._begin() as connection:
            rows = connection.execute(select(t.studies).order_by(t.studies.c.name)).all()
        return [study_record(row) for row in rows]

    def study_digests(self) -> list[tuple[str, str]]:
        with self._begin() as connection:
            rows = connection.execute(select(t.studies.c.name, t.studies.c.digest)).all()
        return sorted((str(name), str(digest)) for name, digest in rows)  # a database may order by its own alphabet

    def change_study(self, digest: str, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        with self._begin() as connection:
            self._require_newest(connection)
            connection.execute(_HELD_ALONE, {"digest": digest})
            changed = change(self._study(connection, digest))
            row = study_row(changed) | {"cursor": t.studies.c.cursor + 1}
            connection.execute(update(t.studies).where(t.studies.c.digest == digest).values(row))
            self._touched.append(digest)
            return self._study(connection, digest)

    def add_ready(self, study: str, site: str) -> None:
        if site in self.ready_sites(study):
            return
        with self._begin() as connection:
            connection.execute(insert(t.ready_sites).values(study=study, site=site, since_s=self._clock()))
            self._touch(connection, study)

    def ready_sites(self, study: str) -> tuple[str, ...]:
        return tuple(sorted(row.site for row in self._all(_READY, {"of_study": study})))

    def created_at_s(self, study: str) -> float | None:
        with self._begin() as connection:
            return connection.execute(select(t.studies.c.created_at_s).where(t.studies.c.digest == study)).scalar()

    def ready_since(self, study: str) -> dict[str, float | None]:
        with self._begin() as connection:
            rows = connection.execute(
                select(t.ready_sites.c.site, t.ready_sites.c.since_s).where(t.ready_sites.c.study == study)
            ).all()
        return {str(site): since_s for site, since_s in rows}

    def _study(self, connection: Connection, digest: str) -> StudyRecord:
        row = _WITH_DIGEST.first(self._dialect, connection.connection, {"digest": digest})
        return self._known(None if row is None else study_record(row))

    @staticmethod
    def _known(record: StudyRecord | None) -> StudyRecord:
        if record is None:
            raise UnknownStudy(
                "this server has no study with that digest; the requester must create it at both servers"
            )
        return record
