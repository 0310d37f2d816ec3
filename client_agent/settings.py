"""The agent's settings: one TOML file, overridden by MOIETY_AGENT_* in the environment; strict.

Relative paths are relative to the file that holds them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, StrictInt, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from client_agent.learning.settings import ModelSources, TrainerSettings
from client_agent.net.quiet_hours import QuietHours
from host.files import read_secret
from host.frozen import Frozen
from host.network import WebProxy
from host.settings import file_table
from protocol.configuration import validated
from protocol.errors import ConfigurationError
from protocol.messages.control import PartyName, StudyName
from protocol.policy.site_policy import SitePolicy

_SUBMISSION_PORT: Final = 587
MailAddress = Annotated[str, Field(pattern=r"^[^@\s,;<>\"]+@[^@\s,;<>\"]+$", max_length=254)]


class NotifySettings(Frozen):
    """Whom the agent tells that a study waits for a person. Each description says why the default is what it is."""

    webhook: str | None = Field(default=None, description="names of studies leave the site, so it is asked for")
    webhook_secret: Path | None = Field(default=None, description="only a webhook has one")
    mail_to: tuple[MailAddress, ...] = Field(default=(), description="as the webhook")
    mail_from: MailAddress | None = Field(default=None, description="the site's own mail server knows its senders")
    smtp_host: str | None = Field(default=None, description="each hospital has its own; without a port it is 587")
    smtp_credentials: Path | None = Field(default=None, description="servers in a hospital mostly ask for none")
    ca: Path | None = Field(default=None, description="the system's authorities hold for most servers")

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
        try:
            _ = self.mail_server
        except ValueError:
            raise ValueError("smtp_host is HOST or HOST:PORT") from None
        return self

    @property
    def mail_server(self) -> tuple[str, int]:
        """Host and port of ``smtp_host``."""
        parts = urlsplit(f"//{self.smtp_host or ''}")
        return parts.hostname or "", parts.port or _SUBMISSION_PORT


ENVIRONMENT_PREFIX: Final = "MOIETY_AGENT_"
REMOVED: Final = {
    "tls": "TLS is 1.3 wherever the server speaks it, and 1.2 at least",
    "start_timeout_s": "after an hour the study's least number of contributors is enough",
    "transcripts_kept_rounds": "the signed messages of a study's newest 10000 rounds stay",
    "poll_s": "an agent looks for studies every second, or waits at server A until there is news",
    "stuck_timeout_s": "a round of which neither server shows anything new for three days ends its study",
    "time_zone": "quiet hours are in this machine's time: set the variable TZ, as in TZ=Europe/Zurich",
    "notify.smtp_port": 'write it behind the host, as in smtp_host = "mail.example.org:25"',
    "notify.smtp_starttls": "mail goes under STARTTLS alone",
    "trainer.name": "the program calls its function, ClientApp or client 'app': add a line such as app = my_function",
    "trainer.timeout_s": "a round of the trainer may take as long as the study's round_deadline_s",
}
"""Settings of earlier releases, and what holds instead."""
_SWITCH: Final = {"true": True, "false": False}
_NUMBERS: Final = ("seed", "start_when", "bootstrap_samples", "bandwidth_up_bytes_per_s", "bandwidth_down_bytes_per_s")
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
    """Everything a site's agent needs to know. Each description says why the default is what it is."""

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
    approve: Literal["manual", "policy"] = Field(default="manual", description="no study trains without a person's yes")
    proxy: str | None = Field(default=None, description="none is taken from the environment of other programs")
    proxy_credentials: Path | None = Field(default=None, description="most proxies ask for none")
    bandwidth_up_bytes_per_s: Annotated[int, Field(ge=10_000, strict=True)] | None = Field(
        default=None, description="a cap makes rounds longer; set it where the line is shared"
    )
    bandwidth_down_bytes_per_s: Annotated[int, Field(ge=10_000, strict=True)] | None = Field(
        default=None, description="as up"
    )
    quiet_hours: tuple[str, ...] = Field(default=(), description="a site that waits is missing in rounds that close")
    device: Device = Field(default="auto", description="a GPU where there is one")
    plugin: Path | None = Field(default=None, description="it is code, so nobody but the site names it")
    trainer: TrainerSettings = TrainerSettings()
    architectures: tuple[ArchitectureName, ...] = Field(default=(), description="a study can ask for a huge network")
    weights: Path | None = Field(default=None, description="only fine-tuning needs it")
    policy: SitePolicy = SitePolicy()
    studies: Literal["all"] | tuple[StudyName, ...] = Field(default="all", description="a person approves each study")
    seed: StrictInt | None = Field(default=None, description="with one every secret is predictable: tests only")
    failpoint: str | None = Field(default=None, description="tests only")
    notify: NotifySettings = NotifySettings()
    start_when: Literal["all"] | Annotated[int, Field(ge=1, strict=True)] = Field(
        default="all", description="who comes late is in fewer sums; after an hour the study's least number is enough"
    )
    bootstrap_samples: Annotated[int, Field(ge=0, le=100_000, strict=True)] = Field(
        default=200, description="enough for intervals of 95 %, soon drawn"
    )

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
        """When large transfers wait, in this machine's time. Raises: ConfigurationError"""
        zone = os.environ.get("TZ", "").removeprefix(":") if self.quiet_hours else ""
        named = zone and not zone.startswith("/")  # a file, mostly /etc/localtime, is the machine's own time too
        return QuietHours.parse(self.quiet_hours, zone if named else None)

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
