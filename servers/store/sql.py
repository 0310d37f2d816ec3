"""The store over SQLAlchemy: SQLite (WAL, synchronous=FULL) by default, PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    and_,
    create_engine,
    delete,
    event,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError

from protocol.errors import BadSignature, CorrelationReused, StorageFull, Unavailable, UnknownStudy
from protocol.wire.messages import Announcement, ContributedRound, Purpose, RoundState, Signed
from servers.store import tables as t
from servers.store.interface import (
    Answer,
    AnswerKind,
    ContributionRecord,
    CorrelationUse,
    MailRecord,
    Refusal,
    RoundKey,
    RoundRecord,
    StudyRecord,
)
from servers.store.rows import (
    contributed_round,
    contribution_record,
    contribution_row,
    mail_record,
    round_record,
    round_row,
    study_record,
    study_row,
    use_row,
)


def open_engine(url: str, *, durable: bool = True) -> Engine:
    """``durable=False`` is for nonces: a commit need not reach the disk before it returns."""
    engine = create_engine(url)
    sqlite = engine.dialect.name == "sqlite"

    def prepare(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        if sqlite:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA busy_timeout=5000")
        elif not durable:
            cursor.execute("SET synchronous_commit TO OFF")
        cursor.close()

    event.listen(engine, "connect", prepare)
    return engine


def _explained(error: DatabaseError) -> Unavailable:
    if "full" in str(error.orig).lower():
        return StorageFull("the database has no room left; nothing was stored; send the same again later")
    return Unavailable("the database does not answer; try again later")


MOST_REFUSALS: Final = 100


class SqlStore:
    """See ``interface.Store``. The schema must exist: ``migrate.upgrade``.

    ``on_change`` is told the study after every transaction that moved its cursor.
    """

    def __init__(self, url: str, on_change: Callable[[str], None]) -> None:
        self._engine = open_engine(url)
        self._nonce_engine = open_engine(url, durable=False)
        self._on_change = on_change
        self._touched: list[str] = []

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        self._touched.clear()
        try:
            with self._engine.begin() as connection:
                yield connection
            for study in self._touched:
                self._on_change(study)
        except OperationalError as error:
            raise _explained(error) from error

    def ready(self) -> None:
        with self._begin() as connection:
            connection.execute(select(1))

    def close(self) -> None:
        self._engine.dispose()
        self._nonce_engine.dispose()

    def next_boot(self) -> int:
        with self._begin() as connection:
            return int(connection.execute(insert(t.boots).values()).inserted_primary_key[0])  # type: ignore[index]

    # --- studies ------------------------------------------------------------------------------------------------------

    def add_study(self, record: StudyRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.studies).values(study_row(record)))
            self._touched.append(record.digest)

    def study_named(self, name: str) -> StudyRecord | None:
        with self._begin() as connection:
            row = connection.execute(select(t.studies).where(t.studies.c.name == name)).one_or_none()
        return None if row is None else study_record(row)

    def study(self, digest: str) -> StudyRecord:
        with self._begin() as connection:
            return self._study(connection, digest)

    def studies(self) -> list[StudyRecord]:
        with self._begin() as connection:
            rows = connection.execute(select(t.studies).order_by(t.studies.c.name)).all()
        return [study_record(row) for row in rows]

    def change_study(self, digest: str, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        with self._begin() as connection:
            changed = change(self._study(connection, digest))
            row = study_row(changed) | {"cursor": t.studies.c.cursor + 1}
            connection.execute(update(t.studies).where(t.studies.c.digest == digest).values(row))
            self._touched.append(digest)
            return self._study(connection, digest)

    def _study(self, connection: Connection, digest: str) -> StudyRecord:
        row = connection.execute(select(t.studies).where(t.studies.c.digest == digest)).one_or_none()
        if row is None:
            raise UnknownStudy(
                "this server has no study with that digest; the requester must create it at both servers"
            )
        return study_record(row)

    def _touch(self, connection: Connection, study: str) -> None:
        connection.execute(update(t.studies).where(t.studies.c.digest == study).values(cursor=t.studies.c.cursor + 1))
        self._touched.append(study)

    def add_ready(self, study: str, site: str) -> None:
        if site in self.ready_sites(study):
            return
        with self._begin() as connection:
            connection.execute(insert(t.ready_sites).values(study=study, site=site))
            self._touch(connection, study)

    def ready_sites(self, study: str) -> tuple[str, ...]:
        with self._begin() as connection:
            rows = connection.execute(
                select(t.ready_sites.c.site).where(t.ready_sites.c.study == study).order_by(t.ready_sites.c.site)
            )
            return tuple(rows.scalars())

    # --- rounds -------------------------------------------------------------------------------------------------------

    def add_round(self, record: RoundRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.rounds).values(round_row(record)))
            self._touch(connection, record.key.study)

    def round(self, key: RoundKey) -> RoundRecord | None:
        with self._begin() as connection:
            row = connection.execute(select(t.rounds).where(*_at(t.rounds, key))).one_or_none()
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
            row = connection.execute(select(t.rounds).where(*_at(t.rounds, key))).one()
            changed = change(round_record(row))
            connection.execute(update(t.rounds).where(*_at(t.rounds, key)).values(round_row(changed)))
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

    def _mark_used(self, connection: Connection, used: Sequence[CorrelationUse]) -> None:
        try:
            if used:
                connection.execute(insert(t.correlations), [use_row(use) for use in used])
        except IntegrityError:
            raise CorrelationReused(
                f"a correlation of {used[0].key.label} has been used before; a correlation serves one product, ever: "
                "burn the attempt and make new ones"
            ) from None

    def correlations_used(self, key: RoundKey) -> int:
        with self._begin() as connection:
            count = connection.execute(
                select(func.count()).select_from(t.correlations).where(*_at(t.correlations, key))
            ).scalar_one()
        return int(count)

    def answer(self, key: RoundKey, kind: AnswerKind) -> Answer | None:
        with self._begin() as connection:
            row = connection.execute(
                select(t.answers).where(*_at(t.answers, key), t.answers.c.kind == kind.value)
            ).one_or_none()
        return None if row is None else Answer(AnswerKind(row.kind), row.request_digest, row.body)

    # --- contributions ------------------------------------------------------------------------------------------------

    def contribution(self, key: RoundKey, site: str) -> ContributionRecord | None:
        with self._begin() as connection:
            row = connection.execute(
                select(t.contributions).where(*_at(t.contributions, key), t.contributions.c.site == site)
            ).one_or_none()
        return None if row is None else contribution_record(row)

    def contributions(self, key: RoundKey) -> list[ContributionRecord]:
        with self._begin() as connection:
            rows = connection.execute(select(t.contributions).where(*_at(t.contributions, key))).all()
        return [contribution_record(row) for row in rows]

    def contributions_held(self, key: RoundKey) -> int:
        with self._begin() as connection:
            count = connection.execute(
                select(func.count()).select_from(t.contributions).where(*_at(t.contributions, key))
            ).scalar_one()
        return int(count)

    def contributed(self, site: str, after: tuple[str, int], limit: int) -> list[ContributedRound]:
        c, r = t.contributions.c, t.rounds.c
        study, number = after
        later = or_(c.study > study, and_(c.study == study, c.round > number))
        same = and_(r.study == c.study, r.round == c.round, r.attempt == c.attempt)
        over = [RoundState.SKIPPED.value, RoundState.BURNT.value, RoundState.RANKED.value]
        chosen = (
            select(t.contributions, t.studies.c.name, r.announcement)
            .join(t.rounds, same)
            .join(t.studies, t.studies.c.digest == c.study)
            .where(c.site == site, later, r.state.not_in(over))
            .order_by(c.study, c.round)
        )
        found: list[ContributedRound] = []
        with self._begin() as connection:
            for row in connection.execute(chosen):
                if len(found) == limit:
                    break
                if Signed[Announcement].parse(row.announcement).message.purpose is Purpose.UPDATE:
                    found.append(contributed_round(row))
        return found

    def add_contribution(self, record: ContributionRecord, state: RoundState) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.contributions).values(contribution_row(record)))
            connection.execute(update(t.rounds).where(*_at(t.rounds, record.key)).values(state=state.value))
            self._touch(connection, record.key.study)

    def forget_share_files(self, study: str, *, before_round: int) -> list[str]:
        queries = t.rounds.c
        with self._begin() as connection:
            return [
                *_forget(connection, t.contributions, "file", study, before_round),
                *_forget(connection, t.rounds, queries.query_file.name, study, before_round),
            ]

    def forget_attempt_files(self, key: RoundKey) -> list[str]:
        with self._begin() as connection:
            files = (
                connection.execute(
                    select(t.contributions.c.file).where(
                        *_at(t.contributions, key), t.contributions.c.file.is_not(None)
                    )
                )
                .scalars()
                .all()
            )
            connection.execute(update(t.contributions).where(*_at(t.contributions, key)).values(file=None))
        return [str(name) for name in files]

    def forget_outputs(self, study: str, *, before_round: int) -> list[str]:
        with self._begin() as connection:
            return _forget(connection, t.rounds, "output_file", study, before_round)

    def files(self) -> set[str]:
        columns = (t.contributions.c.file, t.rounds.c.query_file, t.rounds.c.output_file, t.mail.c.file)
        with self._begin() as connection:
            return {
                name for column in columns for name in connection.execute(select(column)).scalars() if name is not None
            }

    # --- mail ---------------------------------------------------------------------------------------------------------

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
        c = t.mail.c
        with self._begin() as connection:
            rows = connection.execute(select(t.mail).where(c.study == study, c.topic.in_(topics))).all()
        return [mail_record(row) for row in rows]

    def forget_mail(self, records: Sequence[MailRecord]) -> None:
        c = t.mail.c
        with self._begin() as connection:
            for one in records:
                key = (c.study == one.study, c.sender == one.sender, c.recipient == one.recipient, c.topic == one.topic)
                connection.execute(delete(t.mail).where(*key))
            for study in {one.study for one in records}:
                self._touch(connection, study)

    # --- requests -----------------------------------------------------------------------------------------------------

    def remember_nonce(self, party: str, nonce: str, now_s: float) -> None:
        try:
            with self._nonce_engine.begin() as connection:
                connection.execute(insert(t.nonces).values(party=party, nonce=nonce, seen_at_s=now_s))
        except IntegrityError:
            raise BadSignature(
                "this request's nonce came before: a request that is sent again takes a new nonce and signature"
            ) from None
        except DatabaseError as error:
            raise _explained(error) from error

    def purge_nonces(self, before_s: float) -> None:
        try:
            with self._nonce_engine.begin() as connection:
                connection.execute(delete(t.nonces).where(t.nonces.c.seen_at_s < before_s))
        except DatabaseError as error:
            raise _explained(error) from error

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


def _at(table: Table, key: RoundKey) -> tuple[Any, ...]:
    return (table.c.study == key.study, table.c.round == key.round, table.c.attempt == key.attempt)


def _forget(connection: Connection, table: Table, column: str, study: str, before_round: int) -> list[str]:
    where = (table.c.study == study, table.c.round < before_round, table.c[column].is_not(None))
    names = connection.execute(select(table.c[column]).where(*where)).scalars().all()
    if names:
        connection.execute(update(table).where(*where).values({column: None}))
    return [str(name) for name in names]
