"""One server's settings: a TOML file, overridden by MOIETY_SERVER_* variables; strict."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from host.frozen import Frozen
from host.network import is_loopback
from host.settings import file_table
from protocol.configuration import explained
from protocol.errors import ConfigurationError
from protocol.messages.paths import ServerUrl
from protocol.sharing import Side

ENVIRONMENT_PREFIX = "MOIETY_SERVER_"
_OPERATIONS_ABOVE: Final = 1000
_LAST_PORT: Final = 65535
REMOVED: Final = {
    "limits.mail_bytes": "a letter has at most 8 GiB",
    "limits.retry_window_s": "a burnt attempt is repeated for at least 60 s",
    "limits.handshake_s": "header_s bounds the start of TLS too",
    "limits.request_line_bytes": "a request's address has at most 4096 bytes",
    "limits.headers": "a request has at most 64 headers",
    "limits.header_bytes": "a request's head has at most 32768 bytes",
    "limits.least_bytes_per_s": "a body must come with 2048 bytes a second",
    "ray.shares_a_task": "a task sketches 32 contributions",
    "traces_to": "how long the phases of rounds take is in moiety_phase_seconds",
}
"""Settings of earlier releases, and what holds instead."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Limits(Frozen):
    """Sizes and times that keep one caller from exhausting the server. Descriptions are the defaults' reasons."""

    disk_reserve_bytes: int = Field(default=2**26, ge=0, description="so that database and log end what is under way")
    long_poll_s: float = Field(default=30.0, gt=0, le=300, description="proxies mostly cut a silent request after 60 s")
    grace_s: float = Field(default=60.0, ge=0, description="an agent needs seconds; a minute lets it restart")
    attempts: int = Field(default=3, ge=1, le=100, description="each site that is lost costs one")
    pause_after_skips: int = Field(default=3, ge=1, description="a restart of the requester costs one")
    requester_silent_s: float = Field(default=86400.0, gt=0, description="a night's outage pauses no study")
    outputs_kept_rounds: int = Field(default=10, ge=1, description="each takes 8 bytes a parameter on disk")
    peer_timeout_s: float = Field(default=30.0, gt=0, description="as a long poll's")
    connections: int = Field(default=1024, ge=16, description="100 MB: an idle one takes some 100 kB")
    connections_per_address: int = Field(default=64, ge=4, description="an agent opens at most 16")
    unsigned_per_s: float = Field(default=20.0, gt=0, description="agents sign theirs; joining takes a few")
    header_s: float = Field(default=10.0, gt=0, description="a slow line needs less")
    idle_s: int = Field(default=75, ge=1, description="above the 60 s of most proxies, so that they close first")
    stall_s: float = Field(default=30.0, gt=0, description="a slow line may pause without losing its upload")
    lease_s: float = Field(default=10.0, ge=0.5, description="rounds wait for so long when the driver dies")


class Engine(StrEnum):
    """The engine of a server's linear passes."""

    HERE = "here"
    RAY = "ray"


class Role(StrEnum):
    """The role of one process in a server: all of it, or one of several on one PostgreSQL and one data_dir."""

    ALL = "all"
    UPLOAD = "upload"
    DRIVER = "driver"


class RayCluster(Frozen):
    """The cluster that does the linear passes under ``engine = "ray"``, and where its workers find the shares."""

    address: str | None = Field(default=None, description="a cluster of this machine needs none")
    cpus: int = Field(default=2, ge=1, description="as the compose files give a server")
    range_parameters: int = Field(
        default=2**22, ge=2**15, multiple_of=2**15, description="a range of the sum is 32 MiB in memory"
    )
    storage: str | None = Field(default=None, description="workers of this machine read data_dir")
    wrapping_key: Path | None = Field(default=None, description="only a cluster sees wrapped keys")


class ServerSettings(BaseSettings):
    """Everything one server is told; relative paths are relative to the file that names them.

    Each description says why the default is what it is.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    side: Side
    host: str = Field(default="127.0.0.1", description="nothing listens to the network before somebody says so")
    port: int = Field(ge=1, le=65535)
    public_url: ServerUrl
    peer_url: ServerUrl | None = Field(default=None, description="the other operator's card says it")
    roster: Path
    keys: Path
    card: Path | None = Field(default=None, description="a federation whose first roster was made by hand has none")
    data_dir: Path
    database_url: str | None = Field(
        default=None, repr=False, description="SQLite in data_dir is enough for one process"
    )
    tls_certificate: Path
    tls_key: Path
    peer_ca: Path | None = Field(default=None, description="the system's hold; a paired card brings its own")
    forwarded_by: tuple[Network, ...] = Field(default=(), description="without a proxy, anybody could name an address")
    delete_ended_after_days: int | None = Field(
        default=None, ge=0, description="a person says when; deleting is for good"
    )
    operations_host: str = Field(default="127.0.0.1", description="its metrics are for this machine")
    operations_port: int | None = Field(default=None, ge=1, le=65535, description="1000 above port")
    seed: int | None = Field(default=None, description="with one every secret is predictable: tests only")
    failpoint: str | None = Field(default=None, description="tests only")
    engine: Engine = Field(default=Engine.HERE, description="one machine needs no cluster")
    role: Role = Field(default=Role.ALL, description="several need a PostgreSQL")
    limits: Limits = Limits()
    ray: RayCluster = RayCluster()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    @model_validator(mode="after")
    def _fit_together(self) -> ServerSettings:
        """Raises: ValueError, for the first that does not"""
        peer = urlsplit(self.peer_url).hostname or "" if self.peer_url is not None else self.host
        away = [(where, to) for where, to in (("host", self.host), ("peer_url", peer)) if not is_loopback(to)]
        if self.failpoint is not None and self.seed is None:
            raise ValueError("a failpoint kills this server; it is taken only beside a seed, for tests on loopback")
        if self.seed is not None and away:
            where, address = away[0]
            raise ValueError(f"a seed makes every secret predictable: {where} must be loopback, not {address}")
        if self.engine is Engine.RAY and self.ray.wrapping_key is None:
            raise ValueError("engine ray needs ray.wrapping_key, a file: openssl rand -hex 32 > FILE; chmod 600 FILE")
        if self.role is not Role.ALL and not self.database.startswith("postgresql"):
            raise ValueError(f"role {self.role.value} needs database_url of a PostgreSQL that all processes share")
        if self.operations == self.port or not 1 <= self.operations <= _LAST_PORT:
            raise ValueError(f"operations_port must be another port than {self.port}, at most {_LAST_PORT}: set it")
        return self

    @property
    def operations(self) -> int:
        """The port for metrics, readiness and the API's description."""
        return self.port + _OPERATIONS_ABOVE if self.operations_port is None else self.operations_port

    @property
    def database(self) -> str:
        """The SQLAlchemy URL: SQLite in the data folder unless another is given."""
        return self.database_url or f"sqlite:///{self.data_dir / 'server.db'}"


def load_settings(path: Path) -> ServerSettings:
    """Read one server's settings.

    Raises: ConfigurationError that names every unknown key or wrong value
    """
    table = file_table(ServerSettings, path, path.parent, REMOVED)
    wrong = {detail["loc"]: detail for detail in _wrong_types(table)}
    try:
        settings = ServerSettings(**table)
    except ValidationError as error:
        wrong = {detail["loc"]: detail for detail in error.errors(include_url=False)} | wrong
    except SettingsError as error:
        said = f"{ENVIRONMENT_PREFIX}*: {error}"
        raise ConfigurationError(f"{said}: an array or a table in a variable is written as JSON") from None
    if wrong:
        raise ConfigurationError(f"{path}: {explained(ServerSettings, wrong.values())}")
    return settings


def _wrong_types(table: Mapping[str, Any]) -> Iterator[ErrorDetails]:
    """Name the values of wrong type in the file itself: only the environment's are converted."""
    for key in [key for key in table if key in ServerSettings.model_fields]:
        kind: TypeAdapter[Any] = TypeAdapter(ServerSettings.model_fields[key].rebuild_annotation())
        try:
            kind.validate_json(json.dumps(table[key], default=str), strict=True)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                detail["loc"] = (key, *detail["loc"])
                yield detail
