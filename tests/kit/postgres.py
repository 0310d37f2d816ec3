"""A PostgreSQL of a test's own, from the machine's package: a cluster in a folder, on a socket, without a password.

PostgreSQL does not run as root: for root it runs as the user that Debian's package makes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import pytest
from sqlalchemy import make_url

from servers.store.migrate import upgrade
from tests.needed import postgresql_programs

_USER: Final = "postgres"
_QUICK: Final = ("listen_addresses=", "max_connections=40", "shared_buffers=16MB", "wal_level=replica", "fsync=off")
"""Options for speed: writes survive the processes; a machine that fails is not tested here."""


@dataclass
class Cluster:
    """Databases in ``folder/NAME``, each of which can be killed, started again and put back to an older one."""

    programs: Path
    folder: Path
    name: str = "data"
    _databases: int = field(default=0)
    _template: str = field(default="")

    @property
    def data(self) -> Path:
        return self.folder / self.name

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{_USER}@/{database}?host={self.folder}"

    def new_database(self, template: str = "template1") -> str:
        """-> its URL"""
        self._databases += 1
        database = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {database} TEMPLATE {template}")
        return self.url(database)

    def migrated_database(self) -> str:
        """A server's, with the newest schema and nothing in it; -> its URL"""
        if not self._template:
            made = self.new_database()
            upgrade(made)
            self._template = str(make_url(made).database)
        return self.new_database(self._template)

    def execute(self, statement: str) -> None:
        with psycopg.connect(f"host={self.folder} user={_USER} dbname=postgres", autocommit=True) as connection:
            connection.execute(statement.encode())

    def break_connections(self, url: str) -> None:
        """As a network does, or a PostgreSQL that was restarted: whoever is connected to this database is cut off."""
        database = make_url(url).database
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")

    def take_changes(self, url: str, takes: bool) -> None:
        """One that takes none refuses to write, and still lets tables be locked; whoever is connected is cut off."""
        database = make_url(url).database
        self.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {'off' if takes else 'on'}")
        self.break_connections(url)

    def make(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", _USER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C")

    def start(self) -> None:
        options = [f"-c {setting}" for setting in (*_QUICK, f"unix_socket_directories={self.folder}")]
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-l", log, "-o", " ".join(options), "start")

    def stop(self) -> None:
        """At once, without a checkpoint or a word to anybody: the next start recovers, as after a crash."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop", check=False)

    def replica(self) -> Path:
        """A copy as a replica has it that hears nothing any more, from now on: what is stored later it lacks."""
        copied = self.folder / "replica"
        shutil.rmtree(copied, ignore_errors=True)
        self._run(
            "pg_basebackup", "-h", str(self.folder), "-U", _USER, "-D", str(copied), "-c", "fast", "-X", "stream", "-N"
        )
        return copied

    def fail_over(self, replica: Path) -> None:
        """The replica answers at the same address."""
        self.stop()
        self.name = replica.name
        self.start()

    def fail_over_early(self, replica: Path) -> None:
        """The replica answers at the same address, before it is promoted: it takes no changes."""
        signal = replica / "standby.signal"
        signal.touch()
        if os.geteuid() == 0:
            shutil.chown(signal, _USER)
        self.fail_over(replica)

    def promote(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "promote")

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        root = os.geteuid() == 0
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            check=False,
            user=_USER if root else None,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        if check and done.returncode != 0:
            log = self.folder / "log"
            raise AssertionError(f"{program}: {done.stdout}\n{log.read_text() if log.exists() else ''}")


class InPostgreSQL:
    """The queries that tests make of a server's SQLite file, in PostgreSQL; as a context manager, closed."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def execute(self, query: str, values: Sequence[object] = ()) -> Any:
        return self._connection.execute(query.replace("?", "%s").encode(), values or None)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A new one, gone in the end; without PostgreSQL on this machine the test is skipped, which says so."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql): NOT tested over it")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as made:  # a socket's path is at most 107 bytes
        if os.geteuid() == 0:
            shutil.chown(made, _USER)
        cluster = Cluster(programs, Path(made))
        cluster.make()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
