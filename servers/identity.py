"""A server's identity: the signed roster and its keys, at the roster's addresses."""

from __future__ import annotations

from host.files import read_secret
from host.network import require_apart
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Roster
from protocol.roster.chain import RosterChain
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from servers.roster.accepted import chain_at_start
from servers.settings import ServerSettings


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
