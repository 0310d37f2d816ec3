"""Contributions in the database, and the files of their shares."""

from __future__ import annotations

from typing import Final

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, update

from protocol.messages.control import Announcement, ContributedRound, RoundState, Signed
from protocol.rounds.states import RoundKey
from servers.store import tables as t
from servers.store.database import Database, at, at_any, forget, key_values
from servers.store.reading.prepared import Prepared
from servers.store.records import ContributionRecord
from servers.store.rows import contributed_round, contribution_record, contribution_row

_OF_ATTEMPT: Final = select(t.contributions).where(*at_any(t.contributions))
_OF_SITE: Final = Prepared(_OF_ATTEMPT.where(t.contributions.c.site == bindparam("of_site")))
_HELD: Final = Prepared(select(func.count().label("held")).select_from(t.contributions).where(*at_any(t.contributions)))
_STATE: Final = Prepared(select(t.rounds.c.state).where(*at_any(t.rounds)))
_ADD: Final = Prepared(insert(t.contributions))
_EMPTIED: Final = (t.contributions, t.answers)
_MOVE_ROUND: Final = Prepared(update(t.rounds).where(*at_any(t.rounds)).values(state=bindparam("to_state")))


class ContributionRows(Database):
    """See ``interface.Store``."""

    def contribution(self, key: RoundKey, site: str) -> ContributionRecord | None:
        row = self._first(_OF_SITE, {**key_values(key), "of_site": site})
        return None if row is None else contribution_record(row)

    def contributions(self, key: RoundKey) -> list[ContributionRecord]:
        with self._begin() as connection:
            rows = connection.execute(_OF_ATTEMPT, key_values(key)).all()
        return [contribution_record(row) for row in rows]

    def contributions_held(self, key: RoundKey) -> int:
        counted = self._first(_HELD, key_values(key))
        return 0 if counted is None else int(counted.held)

    def contributors_of(self, key: RoundKey) -> tuple[str, ...]:
        c = t.contributions.c
        with self._begin() as connection:
            return tuple(connection.execute(select(c.site).where(*at(t.contributions, key)).order_by(c.site)).scalars())

    def last_contributed(self, study: str) -> dict[str, int]:
        c = t.contributions.c
        newest = select(c.site, func.max(c.round)).where(c.study == study).group_by(c.site)
        with self._begin() as connection:
            return {str(site): int(number) for site, number in connection.execute(newest)}

    def contributed(self, site: str, after: tuple[str, int], limit: int) -> list[ContributedRound]:
        c, r = t.contributions.c, t.rounds.c
        study, number = after
        later = or_(c.study > study, and_(c.study == study, c.round > number))
        same = and_(r.study == c.study, r.round == c.round, r.attempt == c.attempt)
        over = [state.value for state in (RoundState.SKIPPED, RoundState.BURNT, RoundState.RANKED, RoundState.CLOSED)]
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
                if Signed[Announcement].parse(row.announcement).message.purpose.plan.steps_model:
                    found.append(contributed_round(row))
        return found

    def add_contribution(self, record: ContributionRecord, state: RoundState) -> None:
        at_key = key_values(record.key)
        with self._begin(only_adds=True) as connection:
            self._require_newest(connection)
            self._run(connection, _ADD, contribution_row(record))
            before = _STATE.first(self._dialect, connection.connection, at_key)
            shown = before is None or before.state != state.value
            if shown:
                self._run(connection, _MOVE_ROUND, {**at_key, "to_state": state.value})
                self._touch(connection, record.key.study)
            else:
                self._held.append(record.key.study)

    def forget_share_files(self, study: str, *, before_round: int) -> list[str]:
        since = self._emptied.get(study, 0)
        with self._begin() as connection:
            self._require_newest(connection)
            past = [and_(table.c.study == study, table.c.round.between(since, before_round - 1)) for table in _EMPTIED]
            keys, answers = past
            of = t.contributions.c
            keyed = or_(of.wrapped_key.is_not(None), of.chunk_tags.is_not(None))
            connection.execute(update(t.contributions).where(keys, keyed).values(wrapped_key=None, chunk_tags=None))
            connection.execute(delete(t.answers).where(answers))
            files = [
                *forget(connection, t.contributions, "file", study, (since, before_round)),
                *forget(connection, t.rounds, "query_file", study, (since, before_round)),
            ]
        self._emptied[study] = max(since, before_round)
        return files

    def forget_attempt_files(self, key: RoundKey) -> list[str]:
        with self._begin() as connection:
            self._require_newest(connection)
            files = (
                connection.execute(
                    select(t.contributions.c.file).where(*at(t.contributions, key), t.contributions.c.file.is_not(None))
                )
                .scalars()
                .all()
            )
            connection.execute(
                update(t.contributions)
                .where(*at(t.contributions, key))
                .values(file=None, wrapped_key=None, chunk_tags=None)
            )
        return [str(name) for name in files]
