"""The password of an operator's page: made here, never chosen, kept as a salted scrypt hash beside the database."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from host.durable import write_durably
from host.private_files import UMASK, private_folder, read_secret
from host.web_page.guard import same
from protocol.errors import ConfigurationError

FILE: Final = "page-password.json"
_BYTES: Final = 18
_COST: Final = 2**14
_BLOCK: Final = 8


class KeptPassword(BaseModel):
    """What a password is compared with; who reads it cannot log in with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    salt: str
    scrypt: str

    def is_of(self, password: str) -> bool:
        """Takes some 50 ms and 16 MiB, as it should."""
        return same(_hash(password, bytes.fromhex(self.salt)), self.scrypt)


def make_password(data_dir: Path) -> str:
    """A new one, which ends every session under the one before; it is nowhere but in the answer."""
    private_folder(data_dir)
    password, salt = secrets.token_urlsafe(_BYTES), secrets.token_bytes(16)
    kept = KeptPassword(salt=salt.hex(), scrypt=_hash(password, salt))
    before = os.umask(UMASK)
    try:
        write_durably(data_dir / FILE, kept.model_dump_json().encode() + b"\n")
    finally:
        os.umask(before)
    return password


def kept_password(data_dir: Path) -> KeptPassword | None:
    """None before one was made. Raises: ConfigurationError"""
    path = data_dir / FILE
    if not path.exists():
        return None
    try:
        return KeptPassword.model_validate_json(read_secret(path))
    except ValidationError:
        raise ConfigurationError(f"{path} is not what was written: make a new password") from None


def _hash(password: str, salt: bytes) -> str:
    return hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=1).hex()
