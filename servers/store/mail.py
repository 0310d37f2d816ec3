"""Mail between sites in the database; its bytes are in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import and_, bindparam, delete, insert, select

from servers.store import tables as t
from servers.store.database import Database
from servers.store.reading.prepared import Prepared
from servers.store.records import MailRecord
from servers.store.rows import mail_record

_OF_STUDY: Final = select(t.mail).where(t.mail.c.study == bindparam("of_study"))
_OF_ALL: Final = Prepared(_OF_STUDY)
_OF_RECIPIENT: Final = Prepared(_OF_STUDY.where(t.mail.c.recipient == bindparam("to_recipient")))
_OF_TOPIC: Final = Prepared(_OF_STUDY.where(t.mail.c.topic == bindparam("of_topic")))
_AT_ONE: Final = and_(
    t.mail.c.study == bindparam("of_study"),
    t.mail.c.sender == bindparam("by_sender"),
    t.mail.c.recipient == bindparam("to_recipient"),
    t.mail.c.topic == bindparam("of_topic"),
)
_ONE: Final = Prepared(select(t.mail).where(_AT_ONE))
_ADD: Final = Prepared(insert(t.mail))
_FORGET: Final = Prepared(delete(t.mail).where(_AT_ONE))


class MailRows(Database):
    """See ``interface.Store``."""

    def mail(self, study: str, sender: str, recipient: str, topic: str) -> MailRecord | None:
        row = self._first(_ONE, _at(study, sender, recipient, topic))
        return None if row is None else mail_record(row)

    def mail_for(self, study: str, recipients: Sequence[str]) -> list[MailRecord]:
        if len(recipients) == 1:
            rows = self._all(_OF_RECIPIENT, {"of_study": study, "to_recipient": recipients[0]})
        else:
            wanted = frozenset(recipients)
            rows = [row for row in self._all(_OF_ALL, {"of_study": study}) if row.recipient in wanted]
        return sorted(map(mail_record, rows), key=lambda mail: (mail.topic, mail.sender))

    def add_mail(self, record: MailRecord, in_place_of: Sequence[MailRecord] = ()) -> None:
        with self._begin() as connection:
            self._move_cursor(connection, record.study)
            self._run(connection, _ADD, asdict(record))
            for one in in_place_of:
                self._run(connection, _FORGET, _at(one.study, one.sender, one.recipient, one.topic))
            for one in (record, *in_place_of):
                self._letters.append((one.study, one.recipient, one.topic))

    def mail_of(self, study: str, topics: Sequence[str]) -> list[MailRecord]:
        rows = [row for topic in topics for row in self._all(_OF_TOPIC, {"of_study": study, "of_topic": topic})]
        return [mail_record(row) for row in rows]

    def forget_mail(self, records: Sequence[MailRecord]) -> None:
        with self._begin() as connection:
            for one in records:
                self._run(connection, _FORGET, _at(one.study, one.sender, one.recipient, one.topic))
            for study in {one.study for one in records}:
                self._touch(connection, study)


def _at(study: str, sender: str, recipient: str, topic: str) -> dict[str, str]:
    return {"of_study": study, "by_sender": sender, "to_recipient": recipient, "of_topic": topic}
