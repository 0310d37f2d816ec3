"""The store over SQLAlchemy: SQLite (WAL, synchronous=FULL) by default, PostgreSQL by URL.

The signed messages of its rounds and the receipts for what sites sent stay: a site compares its memory of sums with
them, whatever study they are of (docs/protocol.md 13). So do correlations that were used, each bound for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import ColumnElement, Connection, FromClause, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import DatabaseError

from protocol.errors import BadSignature
from protocol.messages.control import Signed, StudyState
from protocol.messages.peer import History
from servers.store import tables as t
from servers.store.cache import Prepared
from servers.store.database import Database, explained
from servers.store.leases import Alone, LeaseRows
from servers.store.records import Holdings, Kept, MailRecord, Refusal
from servers.store.rows import mail_record
from servers.store.studies import ContributionRows, RoundRows, StudyRows

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


_UNDER_WAY = (StudyState.OPEN.value, StudyState.PAUSED.value)


class HistoryRows(Database):
    """See ``interface.Store``."""

    def begin_history(self) -> int:
        with self._begin() as connection:
            new = update(t.history).where(t.history.c.began.is_(None)).values(began=t.history.c.changes)
            connection.execute(new)
            return int(connection.execute(select(t.history.c.began)).scalar_one())

    def note_compared(self) -> None:
        with self._begin() as connection:
            connection.execute(update(t.history).values(began=None))

    def restored_at_s(self) -> int:
        with self._begin() as connection:
            return int(connection.execute(select(t.history.c.restored_at_s)).scalar_one())

    def history_of(self, party: str) -> Signed[History] | None:
        with self._begin() as connection:
            row = connection.execute(select(t.histories.c.signed).where(t.histories.c.party == party)).scalar()
        return None if row is None else Signed[History].parse(bytes(row))

    def keep_history(self, signed: Signed[History]) -> None:
        with self._begin() as connection:
            party = signed.message.party
            connection.execute(delete(t.histories).where(t.histories.c.party == party))
            connection.execute(insert(t.histories).values(party=party, signed=signed.canonical()))

    def strand(self, party: str) -> list[str]:
        with self._begin() as connection:
            going = (t.studies.c.state.in_(_UNDER_WAY), t.studies.c.stranded_by.is_(None))
            found = connection.execute(select(t.studies.c.digest, t.studies.c.name).where(*going)).all()
            connection.execute(update(t.studies).where(*going).values(stranded_by=party))
            for digest, _ in found:
                self._touch(connection, digest)
        return sorted(name for _, name in found)

    def declare_restored(self, party: str, now_s: float) -> list[str]:
        proof = self.history_of(party)
        before = max(self.restored_at_s(), 0 if proof is None else proof.message.restored_at_s)
        stranded = self.strand(party)  # first: whoever is killed in between runs the command again
        with self._begin() as connection:
            connection.execute(update(t.history).values(restored_at_s=max(int(now_s), before + 1)))
            connection.execute(delete(t.histories).where(t.histories.c.party == party))
        return stranded


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
        with self._reading() as connection:
            return {
                kind: tuple(connection.execute(select(column).where(column.is_not(None))).scalars())
                for kind, column in columns.items()
            }
