"""The store over SQLAlchemy: SQLite (WAL, synchronous=FULL) by default, PostgreSQL by URL.

The signed messages of its rounds and the receipts for what sites sent stay: a site compares its memory of sums with
them, whatever study they are of (docs/protocol.md 13). So do correlations that were used, each bound for ever.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import DatabaseError

from protocol.errors import BadSignature, Unavailable
from protocol.messages.control import Signed, StudyState
from protocol.messages.peer import History
from servers.store import tables as t
from servers.store.cache import Prepared
from servers.store.database import Database, explained
from servers.store.processes import CHANNEL, Beside, News, parse_news
from servers.store.records import Holdings, Kept, MailRecord, Refusal, record_of
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
    def mail(self, study: str, sender: str, recipient: str, topic: str) -> MailRecord | None:
        row = self._first(_ONE, _at(study, sender, recipient, topic))
        return None if row is None else record_of(MailRecord, row)

    def mail_for(self, study: str, recipients: Sequence[str]) -> list[MailRecord]:
        if len(recipients) == 1:
            rows = self._all(_OF_RECIPIENT, {"of_study": study, "to_recipient": recipients[0]})
        else:
            wanted = frozenset(recipients)
            rows = [row for row in self._all(_OF_ALL, {"of_study": study}) if row.recipient in wanted]
        return sorted((record_of(MailRecord, row) for row in rows), key=lambda mail: (mail.topic, mail.sender))

    def add_mail(self, record: MailRecord, in_place_of: Sequence[MailRecord] = ()) -> None:
        """At once with it the rows of letters that it leaves without a reader go; recipients alone hear of either."""
        with self._begin() as connection:
            self._move_cursor(connection, record.study)
            self._run(connection, _ADD, asdict(record))
            for one in in_place_of:
                self._run(connection, _FORGET, _at(one.study, one.sender, one.recipient, one.topic))
            for one in (record, *in_place_of):
                self._letters.append((one.study, one.recipient, one.topic))

    def mail_of(self, study: str, topics: Sequence[str]) -> list[MailRecord]:
        rows = [row for topic in topics for row in self._all(_OF_TOPIC, {"of_study": study, "of_topic": topic})]
        return [record_of(MailRecord, row) for row in rows]

    def forget_mail(self, records: Sequence[MailRecord]) -> None:
        """Delete their rows; the cursor moves."""
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
    def remember_nonce(self, party: str, nonce: str, now_s: float) -> None:
        """Raises: BadSignature, when the nonce came before"""
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
        """When its newest nonce came that is still there, to whichever process."""
        at_s: float | None = self._scalar(select(func.max(t.nonces.c.seen_at_s)).where(t.nonces.c.party == party))
        return at_s

    def add_refusal(self, refusal: Refusal) -> None:
        """Kept for a person to read: the first hundred of a party and study, so that nobody fills a disk with them."""
        c = t.refusals.c
        mine = select(func.count()).select_from(t.refusals).where(c.study == refusal.study, c.party == refusal.party)
        with self._begin() as connection:
            if connection.execute(mine).scalar_one() < MOST_REFUSALS:
                connection.execute(insert(t.refusals).values(asdict(refusal)))

    def refusals(self, study: str) -> list[Refusal]:
        rows = self._rows_of(select(t.refusals).where(t.refusals.c.study == study).order_by(t.refusals.c.id))
        return [record_of(Refusal, row) for row in rows]


_UNDER_WAY = (StudyState.OPEN.value, StudyState.PAUSED.value)


class HistoryRows(Database):
    def begin_history(self) -> int:
        """At a start: the changes that there were at the first start after ``note_compared``."""
        with self._begin() as connection:
            new = update(t.history).where(t.history.c.began.is_(None)).values(began=t.history.c.changes)
            connection.execute(new)
            return int(connection.execute(select(t.history.c.began)).scalar_one())

    def note_compared(self) -> None:
        with self._begin() as connection:
            connection.execute(update(t.history).values(began=None))

    def restored_at_s(self) -> int:
        return int(self._scalar(select(t.history.c.restored_at_s)))

    def history_of(self, party: str) -> Signed[History] | None:
        """The furthest that the other server has said of itself; of this server, one that it cannot follow."""
        signed = self._scalar(select(t.histories.c.signed).where(t.histories.c.party == party))
        return None if signed is None else Signed[History].parse(bytes(signed))

    def keep_history(self, signed: Signed[History]) -> None:
        with self._begin() as connection:
            party = signed.message.party
            connection.execute(delete(t.histories).where(t.histories.c.party == party))
            connection.execute(insert(t.histories).values(party=party, signed=signed.canonical()))

    def strand(self, party: str) -> list[str]:
        """No study that is under way goes on: ``party``'s older database was put back. -> their names"""
        with self._begin() as connection:
            going = (t.studies.c.state.in_(_UNDER_WAY), t.studies.c.stranded_by.is_(None))
            found = connection.execute(select(t.studies.c.digest, t.studies.c.name).where(*going)).all()
            connection.execute(update(t.studies).where(*going).values(stranded_by=party))
            for digest, _ in found:
                self._touch(connection, digest)
        return sorted(name for _, name in found)

    def declare_restored(self, party: str, now_s: float) -> list[str]:
        """Its operator knows of the older database, and it goes on with new studies. -> names of those stranded"""
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
    def holds_of(self, study: str) -> Holdings:
        """Return what would go with ``forget_study``."""
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
        """Letters, answers, seeds and nonces go, and no row names a file any more; the cursor moves."""
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


_LOCK_WITHIN_S: Final = 5.0
_LOCK_WITHIN: Final = text("SELECT set_config('lock_timeout', :milliseconds, true)")
_END_STANDING: Final = text(
    "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.granted "
    "AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid = :high AND l.objid = :low AND a.state <> 'active' "
    "AND a.state_change < clock_timestamp() - make_interval(secs => :seconds)"
)
"""A lock on a study is held for milliseconds: whoever has held it for seconds and asks nothing stands still."""


class Alone(Database):
    """Several processes on one PostgreSQL: one at a time decides about a study."""

    @contextmanager
    def alone(self, study: str) -> Iterator[None]:
        """Hold the study's lock: reads inside stay valid until it is released. Await nothing inside.

        The lock belongs to the connection of the block's writes: a process that stood still in it and was cut off
        writes nothing more. A server of one process needs no lock. Raises: Unavailable
        """
        if self.beside is None:
            yield
            return
        number = int.from_bytes(hashlib.sha256(study.encode()).digest()[:8], "big", signed=True)
        self._connections.require_kept()
        try:
            with self._begin() as connection:
                connection.execute(_LOCK_WITHIN, {"milliseconds": str(round(1000 * _LOCK_WITHIN_S))})
                connection.execute(select(func.pg_advisory_lock(number)))
        except Unavailable:
            with self._begin() as connection:
                high, low = divmod(number % 2**64, 2**32)
                connection.execute(_END_STANDING, {"high": high, "low": low, "seconds": _LOCK_WITHIN_S})
            raise
        with self._connections.kept_to():
            try:
                yield
            finally:
                with suppress(Unavailable), self._begin() as connection:  # where the connection is gone, so is the lock
                    connection.execute(select(func.pg_advisory_unlock(number)))


_NOW: Final = func.extract("epoch", func.clock_timestamp())
_END_CONNECTIONS: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = :holder AND pid <> pg_backend_pid()"
)
_LOOKED_EVERY_S: Final = 0.5


class LeaseRows(Database):
    """Several processes on one PostgreSQL: one drives, and all hear what each commits (docs/adr/0038)."""

    def take_lease(self, seconds: float) -> int | None:
        """-> the number of this start, when nobody else drives by the store's clock: whoever drove before changes
        nothing any more. None while somebody does.
        """
        beside = self._one_of_several()
        with self._begin() as connection:
            if not self._over(connection):
                return None
            held = connection.execute(select(t.lease).with_for_update()).one()
            if not self._over(connection):
                return None
            if held.holder is not None and held.holder != beside.name:
                connection.execute(_END_CONNECTIONS, {"holder": held.holder})
            boot = self._new_boot(connection)
            taken = {"boot": boot, "holder": beside.name, "folder": beside.folder, "until_s": _NOW + seconds}
            connection.execute(update(t.lease).values(taken))
        self._boot = boot
        return boot

    def renew_lease(self, seconds: float) -> bool:
        """False once another has taken it. Raises: Unavailable, then too"""
        with self._begin() as connection:
            mine = update(t.lease).where(t.lease.c.boot == self._boot).values(until_s=_NOW + seconds)
            return connection.execute(mine).rowcount == 1

    def let_go_of_lease(self) -> None:
        with self._begin() as connection:
            connection.execute(update(t.lease).where(t.lease.c.boot == self._boot).values(until_s=0.0))

    def require_driver(self) -> None:
        """Raises: Unavailable, while no process drives, or where its files lie elsewhere than this one's"""
        with self._begin() as connection:
            self._require_newest(connection)
            over = self._over(connection)
        if over:
            raise Unavailable("no process drives this server's rounds: start one with role 'driver'")

    def listen(self, heard: Callable[[News], None], over: threading.Event) -> None:
        """Tell ``heard`` what other processes commit, and this one too, until ``over``: for a thread.

        Raises: the driver's errors, when the connection ends
        """
        arguments, options = self._dialect.create_connect_args(self._engine.url)
        connection: Any = self._driver.connect(*arguments, **{**options, "autocommit": True})
        with connection:
            connection.execute(f"LISTEN {CHANNEL}")
            while not over.is_set():
                for one in connection.notifies(timeout=_LOOKED_EVERY_S):
                    heard(parse_news(one.payload))
                    if over.is_set():
                        return

    @staticmethod
    def _over(connection: Connection) -> bool:
        until_s, now_s = connection.execute(select(t.lease.c.until_s, _NOW)).one()
        return float(until_s) <= float(now_s)

    def _one_of_several(self) -> Beside:
        if self.beside is None:
            raise AssertionError("a server that is one process takes no lease")
        return self.beside


class SqlStore(
    StudyRows, RoundRows, ContributionRows, MailRows, RequestRows, ForgettingRows, HistoryRows, LeaseRows, Alone
):
    """One server's durable state; the schema must exist: ``migrate.upgrade``.

    Every call is short and runs on a process's one event loop, but those that say otherwise. So what one synchronous
    function reads and then writes is not interleaved by the same process; inside of ``alone`` by no other one either.
    A call returns only after its transaction is on disk.
    """

    def files(self) -> set[str]:
        """Every file that a row names."""
        return {name for names in self.kept().values() for name in names}

    def kept(self) -> dict[Kept, tuple[str, ...]]:
        """The same, by what they hold; for threads."""
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
