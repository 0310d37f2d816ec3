"""Studies, rounds and contributions in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from protocol.errors import CorrelationReused, UnknownStudy
from protocol.messages.control import Announcement, ContributedRound, RoundState, Signed
from protocol.rounds.states import RoundKey
from servers.store import tables as t
from servers.store.cache import Prepared
from servers.store.database import Database, at, at_any, forget, key_values
from servers.store.records import (
    A_NEW_STUDY,
    Answer,
    AnswerKind,
    ContributionRecord,
    CorrelationUse,
    RoundRecord,
    SeenRound,
    StudyRecord,
    record_of,
    row_of,
)

_NAMED: Final = Prepared(select(t.studies).where(t.studies.c.name == bindparam("name")))
_READY: Final = Prepared(select(t.ready_sites.c.site).where(t.ready_sites.c.study == bindparam("of_study")))
_WITH_DIGEST: Final = Prepared(select(t.studies).where(t.studies.c.digest == bindparam("digest")))
_HELD_ALONE: Final = select(t.studies.c.digest).where(t.studies.c.digest == bindparam("digest")).with_for_update()


class StudyRows(Database):
    def add_study(self, record: StudyRecord) -> None:
        with self._begin() as connection:
            connection.execute(insert(t.studies).values(row_of(record) | {"created_at_s": self._clock()}))
            self._touched += [record.digest, A_NEW_STUDY]

    def study_named(self, name: str) -> StudyRecord | None:
        return self._remembered(_NAMED, {"name": name}, partial(record_of, StudyRecord))

    def study(self, digest: str) -> StudyRecord:
        return self._known(self._remembered(_WITH_DIGEST, {"digest": digest}, partial(record_of, StudyRecord)))

    def studies(self) -> list[StudyRecord]:
        rows = self._rows_of(select(t.studies).order_by(t.studies.c.name))
        return [record_of(StudyRecord, row) for row in rows]

    def study_digests(self) -> list[tuple[str, str]]:
        """Name and digest of every study, by name."""
        rows = self._rows_of(select(t.studies.c.name, t.studies.c.digest))
        return sorted((str(row.name), str(row.digest)) for row in rows)  # a database may order by its own alphabet

    def change_study(self, digest: str, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        """Apply ``change`` to the stored record and move the cursor."""
        with self._begin() as connection:
            self._require_newest(connection)
            connection.execute(_HELD_ALONE, {"digest": digest})
            changed = change(self._study(connection, digest))
            row = row_of(changed) | {"cursor": t.studies.c.cursor + 1}
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
        """When this server got the study, since 1970; None where an earlier release stored it."""
        at_s: float | None = self._scalar(select(t.studies.c.created_at_s).where(t.studies.c.digest == study))
        return at_s

    def ready_since(self, study: str) -> dict[str, float | None]:
        """When each of them said so first; None where an earlier release stored it."""
        of = t.ready_sites.c
        rows = self._rows_of(select(of.site, of.since_s).where(of.study == study))
        return {str(row.site): row.since_s for row in rows}

    def _study(self, connection: Connection, digest: str) -> StudyRecord:
        row = _WITH_DIGEST.first(self._dialect, connection.connection, {"digest": digest})
        return self._known(None if row is None else record_of(StudyRecord, row))

    @staticmethod
    def _known(record: StudyRecord | None) -> StudyRecord:
        if record is None:
            raise UnknownStudy(
                "this server has no study with that digest; the requester must create it at both servers"
            )
        return record


_ROUND: Final = Prepared(select(t.rounds).where(*at_any(t.rounds)))
_CURRENT: Final = Prepared(
    select(t.rounds)
    .where(t.rounds.c.study == bindparam("study"))
    .order_by(t.rounds.c.round.desc(), t.rounds.c.attempt.desc())
    .limit(1)
)
_LATEST: Final = Prepared(
    select(t.rounds)
    .where(t.rounds.c.study == bindparam("study"), t.rounds.c.round == bindparam("round"))
    .order_by(t.rounds.c.attempt.desc())
    .limit(1)
)


class RoundRows(Database):
    def add_round(self, record: RoundRecord) -> None:
        with self._begin() as connection:
            self._insert(connection, record)
            self._touch(connection, record.key.study)

    def round(self, key: RoundKey) -> RoundRecord | None:
        return self._remembered(_ROUND, key_values(key), partial(record_of, RoundRecord))

    def current_round(self, study: str) -> RoundRecord | None:
        """The last attempt of the last round."""
        return self._remembered(_CURRENT, {"study": study}, partial(record_of, RoundRecord))

    def latest_attempt(self, study: str, number: int) -> RoundRecord | None:
        return self._remembered(_LATEST, {"study": study, "round": number}, partial(record_of, RoundRecord))

    def change_round(
        self,
        key: RoundKey,
        change: Callable[[RoundRecord], RoundRecord],
        *,
        used: Sequence[CorrelationUse] = (),
        answers: Sequence[Answer] = (),
        then_add: RoundRecord | None = None,
    ) -> RoundRecord:
        """All in one transaction; the study's cursor moves.

        Raises: CorrelationReused, when a correlation served before, or a site of this attempt has one already
        """
        with self._begin() as connection:
            row = connection.execute(select(t.rounds).where(*at(t.rounds, key)).with_for_update()).one()
            changed = change(record_of(RoundRecord, row))
            moved = {} if changed.state.value == row.state else {"state_since_s": self._clock()}
            connection.execute(update(t.rounds).where(*at(t.rounds, key)).values(row_of(changed) | moved))
            self._mark_used(connection, used)
            for answer in answers:
                connection.execute(insert(t.answers).values(**asdict(key), **asdict(answer)))
            if then_add is not None:
                self._insert(connection, then_add)
            self._touch(connection, key.study)
        return changed

    def mark_used(self, used: Sequence[CorrelationUse]) -> None:
        """Raises: CorrelationReused, as ``change_round``"""
        with self._begin() as connection:
            self._mark_used(connection, used)

    def correlations_used(self, key: RoundKey) -> int:
        return int(self._scalar(select(func.count()).select_from(t.correlations).where(*at(t.correlations, key))))

    def answer(self, key: RoundKey, kind: AnswerKind) -> Answer | None:
        rows = self._rows_of(select(t.answers).where(*at(t.answers, key), t.answers.c.kind == kind.value))
        return record_of(Answer, rows[0]) if rows else None

    def forget_outputs(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the outputs of earlier rounds from their rows, masks go; -> files to delete."""
        since = self._without_output.get(study, 0)
        c = t.rounds.c
        masks = (c.study == study, c.round.between(since, before_round - 1), c.mask_seed.is_not(None))
        with self._begin() as connection:
            self._require_newest(connection)
            connection.execute(update(t.rounds).where(*masks).values(mask_seed=None))
            files = forget(connection, t.rounds, "output_file", study, (since, before_round))
        self._without_output[study] = max(since, before_round)
        return files

    def rounds_seen(self, study: str, limit: int) -> list[SeenRound]:
        """The newest attempts first."""
        c = t.rounds.c
        columns = (c.round, c.attempt, c.state, c.began_at_s, c.state_since_s, c.closes_at_s)
        newest = select(*columns).where(c.study == study).order_by(c.round.desc(), c.attempt.desc()).limit(limit)
        return [record_of(SeenRound, row) for row in self._rows_of(newest)]

    def _insert(self, connection: Connection, record: RoundRecord) -> None:
        times = dict.fromkeys(("began_at_s", "state_since_s"), self._clock())
        connection.execute(insert(t.rounds).values(row_of(record) | times))

    def _mark_used(self, connection: Connection, used: Sequence[CorrelationUse]) -> None:
        self._require_newest(connection)
        try:
            if used:
                connection.execute(insert(t.correlations), [row_of(use) for use in used])
        except IntegrityError:
            raise CorrelationReused(
                f"a correlation of {used[0].key.label} has been used before; a correlation serves one product, ever: "
                "burn the attempt and make new ones"
            ) from None


_OF_ATTEMPT: Final = select(t.contributions).where(*at_any(t.contributions))
_OF_SITE: Final = Prepared(_OF_ATTEMPT.where(t.contributions.c.site == bindparam("of_site")))
_HELD: Final = Prepared(select(func.count().label("held")).select_from(t.contributions).where(*at_any(t.contributions)))
_STATE: Final = Prepared(select(t.rounds.c.state).where(*at_any(t.rounds)))
_ADD: Final = Prepared(insert(t.contributions))
_EMPTIED: Final = (t.contributions, t.answers)
_NO_FILE: Final = {"file": None, "wrapped_key": None, "chunk_tags": None}
_MOVE_ROUND: Final = Prepared(update(t.rounds).where(*at_any(t.rounds)).values(state=bindparam("to_state")))


class ContributionRows(Database):
    def contribution(self, key: RoundKey, site: str) -> ContributionRecord | None:
        row = self._first(_OF_SITE, {**key_values(key), "of_site": site})
        return None if row is None else record_of(ContributionRecord, row)

    def contributions(self, key: RoundKey) -> list[ContributionRecord]:
        return [record_of(ContributionRecord, row) for row in self._rows_of(_OF_ATTEMPT, key_values(key))]

    def contributions_held(self, key: RoundKey) -> int:
        """Return the number of contributions, without reading them."""
        counted = self._first(_HELD, key_values(key))
        return 0 if counted is None else int(counted.held)

    def contributors_of(self, key: RoundKey) -> tuple[str, ...]:
        """Return the contributors, without reading their contributions."""
        c = t.contributions.c
        rows = self._rows_of(select(c.site).where(*at(t.contributions, key)).order_by(c.site))
        return tuple(row.site for row in rows)

    def last_contributed(self, study: str) -> dict[str, int]:
        """The last round of each site that ever contributed; looks through all that it did: for threads."""
        c = t.contributions.c
        newest = select(c.site, func.max(c.round)).where(c.study == study).group_by(c.site)
        with self._reading() as connection:
            return {str(site): int(number) for site, number in connection.execute(newest)}

    def contributed(self, site: str, after: tuple[str, int], limit: int) -> list[ContributedRound]:
        """Rounds of updates with a contribution of ``site`` that were not skipped, after a study's digest and round."""
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
                    key = {"study": row.name, "study_digest": row.study, "round": row.round, "attempt": row.attempt}
                    found.append(ContributedRound(**key, body_digest=row.body_digest))
        return found

    def add_contribution(self, record: ContributionRecord, state: RoundState) -> None:
        """Store the share's row and the round's state in one transaction; if that is a new one, the cursor moves."""
        at_key = key_values(record.key)
        with self._begin(only_adds=True) as connection:
            self._require_newest(connection)
            self._run(connection, _ADD, row_of(record))
            before = _STATE.first(self._dialect, connection.connection, at_key)
            shown = before is None or before.state != state.value
            if shown:
                self._run(connection, _MOVE_ROUND, {**at_key, "to_state": state.value})
                self._touch(connection, record.key.study)
            else:
                self._held.append(record.key.study)

    def forget_share_files(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the shares of earlier rounds from their rows; answers go; -> files to delete."""
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
            of, mine = t.contributions.c, at(t.contributions, key)
            files = connection.execute(select(of.file).where(*mine, of.file.is_not(None))).scalars().all()
            connection.execute(update(t.contributions).where(*mine).values(_NO_FILE))
        return [str(name) for name in files]
