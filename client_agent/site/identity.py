"""This site's identity, the roster's chain and its keys, and the files of what those keys remember."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from client_agent.net.roster import ACCEPTED
from client_agent.settings import AgentSettings
from host.files import read_secret, write_durably
from host.network import require_apart
from host.settings import read_text
from protocol.errors import BadSignature, ConfigurationError, MoietyError
from protocol.messages.control import Roster, Signed
from protocol.roster.chain import RosterChain, require_chain, require_extension
from protocol.roster.changes import parse_chain
from protocol.roster.keyfile import PartyKeys, parse_party_keys


def load_identity(settings: AgentSettings) -> tuple[Roster, str]:
    """The newest roster, and the signing key that this site came with, which names its memories.

    Raises: as ``load_chain``
    """
    chain, _ = load_chain(settings)
    return chain.head, chain.founding_keys[settings.site]


def load_chain(settings: AgentSettings) -> tuple[RosterChain, PartyKeys]:
    """The roster's chain, as long as this site knows it, and this site's keys, which must belong to its head.

    Raises: ConfigurationError; BadSignature when the roster lacks a signature
    """
    chain = _newest(signed_chain(settings.roster), settings)
    roster = chain.head
    keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    require_apart((roster.operator_a.url or "", roster.operator_b.url or ""))
    party = roster.party(settings.site)
    if party is None or settings.site not in {site.name for site in roster.sites}:
        names = ", ".join(site.name for site in roster.sites)
        raise ConfigurationError(f"key 'site': found {settings.site!r}; the roster has the sites {names}")
    if keys.name != settings.site or keys.party(samples=party.samples) != party:
        raise ConfigurationError(
            f"key 'keys': {settings.keys} holds the keys of {keys.name!r}, "
            f"not those that the roster has for {settings.site!r}"
        )
    return chain, keys


def signed_chain(path: Path) -> RosterChain:
    """The chain, every link signed by both operators and the requester; BadSignature names the file and what to do.

    Raises: ConfigurationError, BadSignature, RosterRefused
    """
    chain = parse_chain(read_text(path), str(path))
    try:
        return require_chain(chain)
    except BadSignature as wrong:
        how = "take the one that is signed by all from both operators: moiety site status --config SETTINGS.TOML"
        if chain.changes and not _lacking(chain.first):
            how = f"ask whoever has not signed the last change to run: moiety roster sign {path.name} --key SECRET.TOML"
        raise BadSignature(f"{path}: {wrong.detail}; {how}") from None


def _lacking(first: Signed[Roster]) -> bool:
    roster = first.message
    needed = (roster.operator_a.name, roster.operator_b.name, roster.requester)
    return any(first.signature_of(name) is None for name in needed)


def _newest(found: RosterChain, settings: AgentSettings) -> RosterChain:
    """The file's chain, or the longer one that the agent has fetched; a file of another federation begins anew.

    Raises: ConfigurationError, for a fork
    """
    kept = settings.state_dir / ACCEPTED
    if not kept.exists():
        return found
    fetched = signed_chain(kept)
    if fetched.is_extension_of(found) or fetched.first_digest != found.first_digest:
        return fetched if fetched.is_extension_of(found) else found
    try:
        return require_extension(found, fetched)
    except MoietyError as wrong:
        raise ConfigurationError(f"{settings.roster}: {wrong.detail}; this agent has fetched {kept}") from None


R = TypeVar("R", bound=BaseModel)
SECRET_BYTES: Final = 32
_KEY_CHARACTERS: Final = 32


def folder_of_key(state_dir: Path, memory: str, came_with: str) -> Path:
    """Return the folder of a memory, whatever the site is called and however often its keys were renewed since.

    ``came_with``: the signing key that it first had in the roster's chain, in hexadecimal digits.
    """
    return state_dir / memory / came_with[:_KEY_CHARACTERS]


def drawn_once(path: Path, draw: Callable[[], bytes], used: Callable[[], bool], otherwise: str) -> bytes:
    """The 32 bytes at ``path``, drawn and written the first time they are asked for.

    ``used``: whether something that is kept was made with them, so that others must not take their place;
    ``otherwise`` says what would happen. Call it under the memory's lock.

    Raises: ConfigurationError when they are gone although used, or were cut short
    """
    if not path.exists():
        if used():
            raise ConfigurationError(f"{path} is missing, and {otherwise}; restore it from a backup of the same folder")
        write_durably(path, draw())
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"{path} holds {len(secret)} bytes, {SECRET_BYTES} were written; restore it")
    return secret


def read_remembered(path: Path, kind: type[R], memory: str) -> R:
    """A file of the ``memory``. Raises: ConfigurationError when it is not what was written"""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: not a file of this site's memory of {memory} ({error.error_count()} fields are wrong); restore "
            "it from a backup of the same folder"
        ) from None
