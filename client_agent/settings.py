"""The agent's settings: one TOML file, overridden by MOIETY_AGENT_* in the environment; strict.

Relative paths are relative to the file that holds them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from client_agent.learning.settings import ModelSources, TrainerSettings
from client_agent.net.quiet_hours import QuietHours
from host.files import read_secret
from host.network import WebProxy
from host.settings import file_table
from protocol.configuration import validated
from protocol.errors import ConfigurationError
from protocol.messages.control import PartyName, StudyName
from protocol.policy.site_policy import SitePolicy

MailAddress = Annotated[str, Field(pattern=r"^[^@\s,;<>\"]+@[^@\s,;<>\"]+$", max_length=254)]


class NotifySettings(BaseModel):
    """``webhook_secret`` is a file with the key of the webhook's HMAC, ``smtp_credentials`` one with user:password.

    ``ca``: PEM certificates for both, where the system's do not hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    webhook: str | None = None
    webhook_secret: Path | None = None
    mail_to: tuple[MailAddress, ...] = ()
    mail_from: MailAddress | None = None
    smtp_host: str | None = None
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = 587
    smtp_starttls: bool = True
    smtp_credentials: Path | None = None
    ca: Path | None = None

    @model_validator(mode="after")
    def _webhook_under_tls_and_signed(self) -> NotifySettings:
        if self.webhook is None:
            return self
        parts = urlsplit(self.webhook)
        if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
            raise ValueError("webhook must be an https:// address without a user in it")
        if self.webhook_secret is None:
            raise ValueError("a webhook needs webhook_secret, a file with the key that its receiver checks")
        return self

    @model_validator(mode="after")
    def _mail_has_a_way(self) -> NotifySettings:
        if self.mail_to and (self.smtp_host is None or self.mail_from is None):
            raise ValueError("mail_to needs smtp_host and mail_from")
        if self.smtp_credentials is not None and not self.smtp_starttls:
            raise ValueError("smtp_credentials would be readable on the way: set smtp_starttls = true, or none of them")
        return self


ENVIRONMENT_PREFIX: Final = "MOIETY_AGENT_"
REMOVED: Final = {
    "tls": "TLS is 1.3 wherever the server speaks it, and 1.2 at least",
    "start_timeout_s": "after an hour the study's least number of contributors is enough",
    "transcripts_kept_rounds": "the signed messages of a study's newest 10000 rounds stay",
}
"""Settings of earlier releases, and what holds instead."""
_SWITCH: Final = {"true": True, "false": False}
_NUMBERS: Final = (
    "seed",
    "start_when",
    "stuck_timeout_s",
    "poll_s",
    "bootstrap_samples",
    "bandwidth_up_bytes_per_s",
    "bandwidth_down_bytes_per_s",
)
ArchitectureName = Annotated[str, Field(pattern=r"^monai\.[A-Za-z][A-Za-z0-9_]*$")]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


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
    number; after an hour the study's least number of contributors suffices. ``stuck_timeout_s`` (requester
    only): a round that has closed, and of which neither server shows anything new for so long, ends the study; the
    default is three days. ``bootstrap_samples`` are drawn
    for the intervals of the last model's metrics; 0 leaves intervals out. ``failpoint`` is for tests: it
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
    notify: NotifySettings = NotifySettings()
    start_when: Literal["all"] | Annotated[int, Field(ge=1, strict=True)] = "all"
    stuck_timeout_s: Annotated[float, Field(gt=0, strict=True)] = 259_200.0
    poll_s: Annotated[float, Field(gt=0, le=3600, strict=True)] = 1.0
    bootstrap_samples: Annotated[int, Field(ge=0, le=100_000, strict=True)] = 200

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
    table = file_table(AgentSettings, path, Path(os.path.realpath(path)).parent, REMOVED)
    return validated(AgentSettings, table, str(path))


class _DeviceOption(BaseModel):
    device: Device


def with_device(settings: AgentSettings, device: str) -> AgentSettings:
    """The settings with the device of the command line, which wins over file and environment.

    Raises: ConfigurationError
    """
    option = validated(_DeviceOption, {"device": device}, "option --device")
    return settings.model_copy(update={"device": option.device})
