"""The roster of one server, in its place: read for enrolment, and put there once everybody has signed it."""

from __future__ import annotations

from host.files import private_folder
from host.output_files import rewrite
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import Roster, Signed, require_roster
from protocol.roster.chain import RosterChain
from servers.enrolment.register import Register
from servers.roster.accepted import newest_chain
from servers.settings import ServerSettings


def chain_in_place(settings: ServerSettings) -> RosterChain | None:
    """The chain that this server has; None before the federation is founded. Raises: ConfigurationError"""
    return newest_chain(settings)


def first_in_place(settings: ServerSettings) -> Signed[Roster] | None:
    """The first roster that this server has, complete. Raises: ConfigurationError, BadSignature"""
    chain = chain_in_place(settings)
    if chain is None:
        return None
    require_roster(chain.first)
    return chain.first


def names_in_place(settings: ServerSettings) -> tuple[str, ...]:
    """Everybody who is or was in the roster here. Raises: ConfigurationError"""
    chain = chain_in_place(settings)
    return () if chain is None else tuple(chain.founding_keys)


def put_in_place(settings: ServerSettings, text: str, operator: str) -> None:
    """Raises: ConfigurationError, StorageFull; what was there before stays"""
    try:
        private_folder(settings.roster.parent)
        rewrite(settings.roster, text)
    except StorageFull:  # others read these words, and learn no path of this machine from them
        raise StorageFull(f"no space left for {settings.roster.name}: free space on this machine's disk") from None
    except ConfigurationError:
        raise ConfigurationError(f"{operator} cannot write its roster: its operator looks at key 'roster'") from None


def end_renewals(settings: ServerSettings, register: Register) -> None:
    """Have whoever renewed its keys known by those in the roster alone, however that came to be in place: by a file,
    or just before this process ended. Raises: ConfigurationError, StorageFull
    """
    if not register.renewals:
        return
    chain = chain_in_place(settings)
    if chain is not None:
        register.in_force(chain.head.sites)
