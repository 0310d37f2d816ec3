"""This server's own history, both servers' statements of it, and studies that an older database stranded."""

from __future__ import annotations

from sqlalchemy import delete, insert, select, update

from protocol.messages.control import Signed, StudyState
from protocol.messages.peer import History
from servers.store import tables as t
from servers.store.database import Database

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
