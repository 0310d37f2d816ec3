"""Mail between sites in the database; its bytes are in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import bindparam, delete, insert, select

from servers.store import tables as t
from servers.store.database import Database
from servers.store.records import MailRecord
from servers.store.rows import mail_record

_OF_TOPICS: Final = select(t.mail).where(
    t.mail.c.study == bindparam("study"), t.mail.c.topic.in_(bindparam("topics", expanding=True))
)


class MailRows(Database):
    """See ``interface.Store``."""

    def mail(self, study: str, sender: str, recipient: str, topic: str) -> MailRecord | None:
        c = t.mail.c
        where = (c.study == study, c.sender == sender, c.recipient == recipient, c.topic == topic)
        with self._begin() as connection:
            row = connection.execute(select(t.mail).where(*where)).one_or_none()
        return None if row is None else mail_record(row)

    def mail_for(self, study: str, recipients: Sequence[str]) -> list[MailRecord]:
        c = t.mail.c
        with self._begin() as connection:
            rows = connection.execute(
                select(t.mail).where(c.study == study, c.recipient.in_(recipients)).order_by(c.topic, c.sender)
            ).all()
        return [mail_record(row) for row in rows]

    def add_mail(self, record: MailRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.mail).values(asdict(record)))
            self._touch(connection, record.study)

    def mail_of(self, study: str, topics: Sequence[str]) -> list[MailRecord]:
        with self._begin() as connection:
            rows = connection.execute(_OF_TOPICS, {"study": study, "topics": list(topics)}).all()
        return [mail_record(row) for row in rows]

    def forget_mail(self, records: Sequence[MailRecord]) -> None:
        c = t.mail.c
        with self._begin() as connection:
            for one in records:
                key = (c.study == one.study, c.sender == one.sender, c.recipient == one.recipient, c.topic == one.topic)
                connection.execute(delete(t.mail).where(*key))
            for study in {one.study for one in records}:
                self._touch(connection, study)
