"""One server's settings: a TOML file, overridden by MOIETY_SERVER_* variables; strict."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from host.network import is_loopback
from host.settings import file_table
from protocol.configuration import describe
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
}
"""Settings of earlier releases, and what holds instead."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Limits(BaseModel):
    """Sizes and times that keep one caller from exhausting the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    disk_reserve_bytes: int = Field(default=2**26, ge=0, description="free space below which nothing is accepted")
    long_poll_s: float = Field(default=30.0, gt=0, le=300, description="longest wait of a long poll")
    grace_s: float = Field(default=60.0, ge=0, description="for queries, release set and go, after a round closes")
    attempts: int = Field(default=3, ge=1, le=100, description="attempts of one round before it is skipped")
    pause_after_skips: int = Field(default=3, ge=1, description="skips in a row without the requester")
    requester_silent_s: float = Field(default=86400.0, gt=0, description="after a round, until its study is paused")
    outputs_kept_rounds: int = Field(default=10, ge=1, description="rounds whose output can still be fetched")
    peer_timeout_s: float = Field(default=30.0, gt=0, description="longest wait for one answer of the peer")
    connections: int = Field(default=1024, ge=16, description="open connections in all")
    connections_per_address: int = Field(default=64, ge=4, description="of one address; of a proxy's, requests")
    unsigned_per_s: float = Field(default=20.0, gt=0, description="connections and requests that nobody signed")
    header_s: float = Field(default=10.0, gt=0, description="for TLS to begin; from a request's first byte to its body")
    idle_s: int = Field(default=75, ge=1, description="between two requests on one connection")
    stall_s: float = Field(default=30.0, gt=0, description="over which a body's least speed is measured")
    lease_s: float = Field(default=10.0, ge=0.5, description="without a sign of the driver, until another takes over")


class Engine(StrEnum):
    """The engine of a server's linear passes."""

    HERE = "here"
    RAY = "ray"


class Role(StrEnum):
    """The role of one process in a server: all of it, or one of several on one PostgreSQL and one data_dir."""

    ALL = "all"
    UPLOAD = "upload"
    DRIVER = "driver"


class RayCluster(BaseModel):
    """The cluster that does the linear passes under ``engine = "ray"``, and where its workers find the shares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None = Field(default=None, description="of a cluster that runs already; none: one of this machine")
    cpus: int = Field(default=2, ge=1, description="of a cluster of this machine")
    range_parameters: int = Field(default=2**22, ge=2**15, multiple_of=2**15, description="coordinates of one task")
    storage: str | None = Field(default=None, description="where workers read shares; none: a folder in data_dir")
    wrapping_key: Path | None = Field(default=None, description="file with the key that wraps keys and seeds")


class ServerSettings(BaseSettings):
    """Everything one server is told; relative paths are relative to the file that names them."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    side: Side
    host: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    public_url: ServerUrl
    peer_url: ServerUrl | None = None
    roster: Path
    keys: Path
    card: Path | None = None
    data_dir: Path
    database_url: str | None = Field(default=None, repr=False)
    tls_certificate: Path
    tls_key: Path
    peer_ca: Path | None = None
    forwarded_by: tuple[Network, ...] = ()
    delete_ended_after_days: int | None = Field(default=None, ge=0, description="after a study's end; unset: never")
    operations_host: str = "127.0.0.1"
    operations_port: int | None = Field(default=None, ge=1, le=65535)
    traces_to: str | None = Field(default=None, pattern=r"^https?://", description="an OpenTelemetry collector's URL")
    seed: int | None = None
    failpoint: str | None = Field(default=None, description="tests only: where this server kills itself")
    engine: Engine = Engine.HERE
    role: Role = Field(default=Role.ALL, description="several processes: those that answer sites, one that drives")
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
    def _failpoint_beside_a_seed_only(self) -> ServerSettings:
        if self.failpoint is not None and self.seed is None:
            raise ValueError("a failpoint kills this server; it is taken only beside a seed, for tests on loopback")
        return self

    @model_validator(mode="after")
    def _seed_on_loopback_only(self) -> ServerSettings:
        if self.seed is not None:
            peer = urlsplit(self.peer_url).hostname or "" if self.peer_url is not None else self.host
            for where, address in (("host", self.host), ("peer_url", peer)):
                if not is_loopback(address):
                    raise ValueError(f"a seed makes every secret predictable: {where} must be loopback, not {address}")
        return self

    @model_validator(mode="after")
    def _a_wrapping_key_for_a_cluster(self) -> ServerSettings:
        if self.engine is Engine.RAY and self.ray.wrapping_key is None:
            raise ValueError("engine ray needs ray.wrapping_key, a file: openssl rand -hex 32 > FILE; chmod 600 FILE")
        return self

    @model_validator(mode="after")
    def _postgresql_for_several(self) -> ServerSettings:
        if self.role is not Role.ALL and not self.database.startswith("postgresql"):
            raise ValueError(f"role {self.role.value} needs database_url of a PostgreSQL that all processes share")
        return self

    @model_validator(mode="after")
    def _another_port_for_operations(self) -> ServerSettings:
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
        lines = [describe(ServerSettings, detail) for detail in wrong.values()]
        raise ConfigurationError(f"{path}: " + "; ".join(lines))
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
