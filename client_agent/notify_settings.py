"""Settings of notifications that a study waits for a person: a webhook, mail, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
