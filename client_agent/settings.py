"""The agent's settings: one TOML file, overridden by MOIETY_AGENT_* in the environment; strict.

Relative paths are relative to the file that holds them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from client_agent.architectures.sources import ModelSources
from client_agent.notify_settings import NotifySettings
from client_agent.quiet_hours import QuietHours
from client_agent.trainer_settings import TrainerSettings
from host.files import read_secret
from host.network import WebProxy
from host.settings import file_table
from protocol.configuration import validated
from protocol.errors import ConfigurationError
from protocol.messages.control import PartyName, StudyName
from protocol.policy.site_policy import SitePolicy

ENVIRONMENT_PREFIX: Final = "MOIETY_AGENT_"
_SWITCH: Final = {"true": True, "false": False}
_NUMBERS: Final = (
    "seed",
    "start_when",
    "start_timeout_s",
    "stuck_timeout_s",
    "poll_s",
    "bootstrap_samples",
    "transcripts_kept_rounds",
    "bandwidth_up_bytes_per_s",
    "bandwidth_down_bytes_per_s",
)
ArchitectureName = Annotated[str, Field(pattern=r"^monai\.[A-Za-z][A-Za-z0-9_]*$")]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


class TlsSettings(BaseModel):
    """``minimum``: the oldest TLS version this site accepts; 1.3 is used wherever the server speaks it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    minimum: Literal["1.2", "1.3"] = "1.2"


class _Environment(EnvSettingsSource):
    """Variables are text: that of a number or a switch is taken where one belongs; the file must hold the thing."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        numbers: dict[str, object] = {key: _number(values[key]) for key in _NUMBERS if key in values}
        policy = values.get("policy")
        if isinstance(policy, dict):
            numbers["policy"] = {key: _SWITCH.get(str(value), _number(value)) for key, value in policy.items()}
        return {**values, **numbers}


def _number(value: object) -> object:
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


class AgentSettings(BaseSettings):
    """Everything a site's agent needs to know.

    ``start_when`` (requester only): how many contributors must be ready before round 1, ``"all"`` of the roster or a
    number; after ``start_timeout_s`` the study's least number of contributors suffices. ``stuck_timeout_s`` (requester
    only): a round that has closed, and of which neither server shows anything new for so long, ends the study; the
    default is three days. ``bootstrap_samples`` are drawn
    for the intervals of the last model's metrics; 0 leaves intervals out. ``transcripts_kept_rounds``: of how many of a
    study's newest rounds the signed messages stay. ``failpoint`` is for tests: it
    names the place at which this agent kills itself, and is refused without a seed. ``approve``: whether a person says
    yes to each study, or the policy alone does. ``proxy`` is the HTTP proxy on the
    way to both servers, http://HOST:PORT, and ``proxy_credentials`` a file with user:password for it; none is taken
    from the environment. ``bandwidth_up_bytes_per_s`` and ``bandwidth_down_bytes_per_s`` cap this site's bytes at the
    socket over all its connections; None: no cap. In ``quiet_hours``, in ``time_zone`` (None: this machine's), large
    transfers wait.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    site: PartyName
    roster: Path
    keys: Path
    data: Path
    state_dir: Path
    ca: Path
    approve: Literal["manual", "policy"] = "manual"
    proxy: str | None = None
    proxy_credentials: Path | None = None
    bandwidth_up_bytes_per_s: Annotated[int, Field(ge=10_000, strict=True)] | None = None
    bandwidth_down_bytes_per_s: Annotated[int, Field(ge=10_000, strict=True)] | None = None
    quiet_hours: tuple[str, ...] = ()
    time_zone: str | None = None
    device: Device = "auto"
    plugin: Path | None = None
    trainer: TrainerSettings = TrainerSettings()
    architectures: tuple[ArchitectureName, ...] = ()
    weights: Path | None = None
    policy: SitePolicy = SitePolicy()
    studies: Literal["all"] | tuple[StudyName, ...] = "all"
    seed: StrictInt | None = None
    failpoint: str | None = None
    tls: TlsSettings = TlsSettings()
    notify: NotifySettings = NotifySettings()
    start_when: Literal["all"] | Annotated[int, Field(ge=1, strict=True)] = "all"
    start_timeout_s: Annotated[float, Field(ge=0, strict=True)] = 3600.0
    stuck_timeout_s: Annotated[float, Field(gt=0, strict=True)] = 259_200.0
    poll_s: Annotated[float, Field(gt=0, le=3600, strict=True)] = 1.0
    bootstrap_samples: Annotated[int, Field(ge=0, le=100_000, strict=True)] = 200
    transcripts_kept_rounds: Annotated[int, Field(ge=100, strict=True)] = 10_000

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return _Environment(settings_cls), init_settings

    @property
    def sources(self) -> ModelSources:
        """The sources of a study's networks that this site allows."""
        return ModelSources(self.architectures, self.weights)

    @property
    def quiet(self) -> QuietHours:
        """When large transfers wait. Raises: ConfigurationError"""
        return QuietHours.parse(self.quiet_hours, self.time_zone)

    @property
    def web_proxy(self) -> WebProxy | None:
        """The proxy on the way to both servers. Raises: ConfigurationError"""
        if self.proxy is None:
            if self.proxy_credentials is not None:
                raise ConfigurationError("key 'proxy_credentials': there is no 'proxy' that they are for")
            return None
        told = None if self.proxy_credentials is None else read_secret(self.proxy_credentials).strip()
        return WebProxy.parse(self.proxy, told)

    def takes_part_in(self, study: str) -> bool:
        """Return whether this site lets itself be listed in a study of that name."""
        return self.studies == "all" or study in self.studies


def load_settings(path: Path) -> AgentSettings:
    """Read and check a settings file.

    Raises: ConfigurationError that names every wrong key, what was found and what is allowed
    """
    return validated(AgentSettings, file_table(AgentSettings, path, Path(os.path.realpath(path)).parent), str(path))


class _DeviceOption(BaseModel):
    device: Device


def with_device(settings: AgentSettings, device: str) -> AgentSettings:
    """The settings with the device of the command line, which wins over file and environment.

    Raises: ConfigurationError
    """
    option = validated(_DeviceOption, {"device": device}, "option --device")
    return settings.model_copy(update={"device": option.device})
