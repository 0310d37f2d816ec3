"""Keys, settings and fresh databases of simulated servers, and what every start of a server would make anew."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.util import LRUCache

from harness.engine.parties import Parties, SiteEntry, make_parties
from harness.faults.schedule import NEWCOMER, Party, RosterChanged
from harness.faults.simulation import MEMORY
from harness.federation.learners import light_sites
from harness.federation.processes import FederationSpec, RunningFederation
from protocol.messages import control
from protocol.messages.control import (
    LayerShape,
    ModelSpec,
    RosterChange,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    TrainingSpec,
    countersign,
    sign,
)
from protocol.parameters import StudyParameters
from protocol.roster.chain import RosterChain, Wanted, claimed, dump_chain, proposed, signers
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from servers import server
from servers.identity.roster import load_identity
from servers.server import open_server
from servers.settings import ServerSettings, load_settings
from servers.store import database
from servers.store.database import open_engine
from servers.store.migrate import _SCRIPTS

SITES: Final = ("requester", "c1", "c2", "c3")
NAME: Final = "servers"
DIMENSION: Final = 16
_DEADLINE_S: Final = 90.0
"""Shorter than many absences: rounds end in every way there is."""
_SAMPLES: Final = 100
_NEWCOMERS_SEED: Final = bytes(32)


class Federation:
    """The start of every run, made once in a process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moiety-servers-", dir=MEMORY if MEMORY.is_dir() else None)
        spec = FederationSpec("servers", SITES[0], light_sites(SITES), seed=5)
        made = RunningFederation(spec, Path(self._folder.name))
        self.parties: Parties = made.parties
        self.first = RosterChain(made.parties.roster)
        self.state = Path(self._folder.name) / "state"
        self.settings = {side: self._own_roster(made, side) for side in Side}
        self._newcomer = make_parties(NAME, NEWCOMER, [SiteEntry(NEWCOMER, _SAMPLES)], _NEWCOMERS_SEED).keys_of(
            NEWCOMER
        )
        self._claimed = claimed(self._newcomer, self.first.first_digest, samples=_SAMPLES)
        self._longer: dict[tuple[str, str, str], RosterChain] = {}
        self._fresh = {side: one.data_dir.with_name("fresh") for side, one in self.settings.items()}
        for side, one in self.settings.items():
            open_server(one).store.close()  # runs the migrations
            shutil.copytree(one.data_dir, self._fresh[side])

    def _own_roster(self, made: RunningFederation, side: Side) -> ServerSettings:
        """Each server's people put its file in place by themselves."""
        found = load_settings(made.config(made.parties.roster.message.operator(side).name))
        own = found.data_dir.with_name("roster.toml")
        own.write_text(dump_chain(self.first), encoding="utf-8")
        return found.model_copy(update={"roster": own})

    def clean(self) -> None:
        """As before anything ran."""
        shutil.rmtree(self.state, ignore_errors=True)
        for side, one in self.settings.items():
            shutil.rmtree(one.data_dir)
            shutil.copytree(self._fresh[side], one.data_dir)
            put_in_place(one.roster, self.first)

    def keys_of(self, name: Party) -> PartyKeys:
        return self._newcomer if name == NEWCOMER else self.parties.keys_of(name)

    def party_of(self, name: Party) -> control.Party:
        """A site as the roster has it, or will."""
        return self._claimed.party if name == NEWCOMER else next(p for p in self.first.head.sites if p.name == name)

    def changed(self, chain: RosterChain, change: RosterChanged) -> RosterChain:
        """With one more link that everybody has signed; the same chain where it would change nothing."""
        adds = (self._claimed,) if change.adds and chain.head.party(NEWCOMER) is None else ()
        removes = tuple(name for name in change.removes if chain.head.party(name) is not None)
        if not adds and not removes:
            return chain
        place = (chain.head_digest, change.adds, " ".join(removes))
        if place not in self._longer:
            self._longer[place] = self._signed(chain, Wanted(given=adds, remove=removes))
        return self._longer[place]

    def _signed(self, chain: RosterChain, wanted: Wanted) -> RosterChain:
        first, *others = signers(chain.head)
        signed: Signed[RosterChange] = sign(
            proposed(chain, wanted, "sites come and go"), first, self.keys_of(first).signing
        )
        for name in others:
            signed = countersign(signed, name, self.keys_of(name).signing)
        return chain.extended_by(signed)

    def study(self, rounds: int, least: int) -> Study:
        """``least``: contributors to a sum."""
        return Study(
            name=NAME,
            roster_digest=self.first.first_digest,
            parameters=StudyParameters(
                dimension=DIMENSION, clip_norm=1.0, weight_grid=4, least_contributors=least, encoded_norm_log2=21
            ),
            rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
            model=ModelSpec(kind="linear", layers=(LayerShape(name="w", shape=(DIMENSION,)),)),
            training=TrainingSpec(),
            rounds=rounds,
            round_deadline_s=_DEADLINE_S,
        )


@cache
def federation() -> Federation:
    return Federation()


class RosterFiles:
    """The rosters that each server's people put in place in one run; ``newest`` is the one that all signed."""

    def __init__(self, made: Federation) -> None:
        self._made = made
        self.newest = made.first
        self.given = dict.fromkeys(Side, made.first)

    def change(self, change: RosterChanged) -> None:
        """Everybody has signed, and the first of both servers gets it."""
        self.newest = self._made.changed(self.newest, change)
        self.give(change.first)

    def give(self, side: Side) -> None:
        if self.given[side] is not self.newest:
            self.given[side] = self.newest
            put_in_place(self._made.settings[side].roster, self.newest)


def put_in_place(file: Path, chain: RosterChain) -> None:
    """Whole, whatever this machine's disk says that is simulated as full."""
    beside = file.with_name("roster.tmp")
    beside.write_text(dump_chain(chain), encoding="utf-8")
    beside.replace(file)


_Identity = tuple[RosterChain, PartyKeys, RosterChain | None]
_STATEMENTS: Final = 1000


@dataclass
class MadeOnce:
    """Objects made once in a process. Keys and rosters are checked again once a byte of their files has changed."""

    _dialects: list[Any] = field(default_factory=list)
    _compiled: LRUCache[Any, Any] = field(default_factory=lambda: LRUCache(_STATEMENTS))
    _identities: dict[tuple[object, ...], _Identity] = field(default_factory=dict)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A server that starts takes keys, roster and written statements from here."""
        with (
            mock.patch.object(server, "load_identity", self._identity),
            mock.patch.object(database, "create_engine", self._engine),
        ):
            yield

    def _engine(self, url: str) -> Engine:
        engine = create_engine(url)
        if not self._dialects:
            engine.connect().close()  # the first connection completes what the dialect knows
            engine.dispose()
            self._dialects.append(engine.dialect)
        engine.dialect = self._dialects[0]
        engine._compiled_cache = self._compiled
        return engine

    def _identity(self, settings: ServerSettings) -> _Identity:
        files = (settings.keys, settings.roster, *sorted(settings.data_dir.glob("*.toml")))
        seen = (settings.data_dir, *((file, file.read_bytes()) for file in files))
        if seen not in self._identities:
            self._identities[seen] = load_identity(settings)
        return self._identities[seen]


MADE_ONCE: Final = MadeOnce()


_OF_ALEMBIC = "alembic_version"


def one_back(url: str) -> None:
    """Every row goes into the tables that there were before the newest migration; what only newer ones hold is gone.

    Requires: an SQLite database that nobody has open
    """
    now = Path(make_url(url).database or "")
    before = now.with_name("before.db")
    before.write_bytes(_empty())
    with closing(sqlite3.connect(before)) as connection:
        connection.execute("ATTACH ? AS now", (str(now),))
        for table in _tables(connection, "main") & _tables(connection, "now") - {_OF_ALEMBIC}:
            columns = ", ".join(f'"{one}"' for one in _columns(connection, table))  # names from the schema itself
            connection.execute(f'DELETE FROM main."{table}"')  # noqa: S608
            copied = f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM now."{table}"'  # noqa: S608
            connection.execute(copied)
        connection.commit()
    for beside in ("-wal", "-shm"):
        now.with_name(now.name + beside).unlink(missing_ok=True)
    before.replace(now)


def _tables(connection: sqlite3.Connection, schema: str) -> set[str]:
    # the schema is main or now
    found = connection.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'")  # noqa: S608
    return {name for (name,) in found if not name.startswith("sqlite_")}


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Those that the table has in both schemas."""
    both = [
        {row[1] for row in connection.execute(f'PRAGMA {schema}.table_info("{table}")')} for schema in ("main", "now")
    ]
    return sorted(both[0] & both[1])


@cache
def _empty() -> bytes:
    """A database of the schema before the newest, with nothing in it."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_revision(scripts.get_current_head() or "")
    with tempfile.TemporaryDirectory(prefix="moiety-schema-") as folder:
        path = Path(folder) / "server.db"
        engine = open_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, str(newest.down_revision))
        engine.dispose()
        return path.read_bytes()
