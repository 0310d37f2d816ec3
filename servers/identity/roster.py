"""The roster and keys that a server goes by at its start, and those that it accepted.

The accepted chain is kept in ``data_dir``, so that an older file that is put back, or a fork, is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from host import log
from host.files import read_secret, write_durably
from host.network import require_apart
from host.settings import read_text
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Roster
from protocol.roster.chain import RosterChain, dump_chain, parse_chain, require_chain, require_extension
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from servers.settings import ServerSettings

ACCEPTED: Final = "accepted_roster.toml"
_log = log.logger("roster")


def read_chain(path: Path) -> RosterChain:
    """Raises: ConfigurationError, BadSignature, RosterRefused"""
    return require_chain(_parsed(path))


def chain_at_start(settings: ServerSettings) -> tuple[RosterChain, RosterChain | None]:
    """Return the chain that the server begins with, and what it had accepted before.

    An older file than the accepted one changes nothing: what was accepted stays. Raises: as ``read_chain``
    """
    found, kept = read_chain(settings.roster), settings.data_dir / ACCEPTED
    if not kept.exists():
        return found, None
    accepted = read_chain(kept)
    if accepted.is_extension_of(found):
        if found.number < accepted.number:
            said = (
                f"{settings.roster} ends with change {found.number}; this server has accepted change "
                f"{accepted.number}, which stays in force: put the newest roster file in place"
            )
            _log.error("old_roster", detail=said)
        return accepted, accepted
    if found.first_digest != accepted.first_digest:
        return found, accepted  # whose folder it is says more: ``require_continued`` refuses it afterwards
    try:
        return require_extension(found, accepted), accepted
    except MoietyError as wrong:
        raise ConfigurationError(f"{settings.roster}: {wrong.detail}; this server has accepted {kept}") from None


def newest_chain(settings: ServerSettings) -> RosterChain | None:
    """The chain that the next change must follow: the file's, or what was accepted, if that is longer or the file is
    a fork of it. None before the federation is founded.

    A file that was put back would otherwise have this operator sign a second change after the same link. Nothing but
    the links after the accepted ones is checked. Raises: ConfigurationError
    """
    kept = settings.data_dir / ACCEPTED
    accepted = _parsed(kept) if kept.exists() else None
    found = _parsed(settings.roster) if settings.roster.exists() else None
    if accepted is None or found is None or found.first_digest != accepted.first_digest:
        return found or accepted
    try:
        return require_extension(found, accepted)
    except MoietyError:
        return accepted


def _parsed(path: Path) -> RosterChain:
    return parse_chain(read_text(path), str(path))


def require_continued(chain: RosterChain, accepted: RosterChain | None) -> None:
    """Raises: ConfigurationError, for another first roster than the one that was accepted in this folder"""
    if accepted is not None and accepted.first_digest != chain.first_digest:
        raise ConfigurationError(
            f"key 'roster': it begins with {chain.first_digest[:16]}, this server has accepted one that begins with "
            f"{accepted.first_digest[:16]}: give the new federation a data_dir and a database of its own"
        )


def is_kept(settings: ServerSettings, chain: RosterChain) -> bool:
    kept = settings.data_dir / ACCEPTED
    return kept.exists() and kept.read_bytes() == dump_chain(chain).encode()


def keep_chain(settings: ServerSettings, chain: RosterChain) -> None:
    """Durably, before anything follows from it."""
    write_durably(settings.data_dir / ACCEPTED, dump_chain(chain).encode())


def _require_addresses(settings: ServerSettings, roster: Roster) -> None:
    """Signatures cover the roster's addresses: with another one every request is refused, first by the sites."""
    for key, side in (("public_url", settings.side), ("peer_url", settings.side.other)):
        operator, found = roster.operator(side), getattr(settings, key)
        if found is None:
            raise ConfigurationError(f"key '{key}' is missing: the roster has {operator.url!r} for {operator.name!r}")
        if found != operator.url:
            raise ConfigurationError(
                f"key '{key}': found {found!r}; the roster has {operator.url!r} for {operator.name!r}, operator of "
                f"side {side.value!r}, letter by letter: set that, or have a new roster signed if it is wrong"
            )


def load_identity(settings: ServerSettings) -> tuple[RosterChain, PartyKeys, RosterChain | None]:
    """The roster's chain and this server's keys, which belong to its head, at the head's addresses, on two machines.

    The third is what the server had accepted before.

    Raises: ConfigurationError
    """
    try:
        chain, accepted = chain_at_start(settings)
        keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except ConfigurationError:
        raise
    except MoietyError as error:
        raise ConfigurationError(f"{settings.roster}: {error.detail}") from None
    roster = chain.head
    mine = roster.operator(settings.side)
    if mine != keys.party(url=mine.url):
        raise ConfigurationError(
            f"{settings.keys}: these are the keys of {keys.name!r}; the roster's operator of side "
            f"{settings.side.value!r} is {mine.name!r}, with other keys: check 'side' and 'keys'"
        )
    _require_addresses(settings, roster)
    require_apart((roster.operator_a.url or "", roster.operator_b.url or ""))
    return chain, keys, accepted
