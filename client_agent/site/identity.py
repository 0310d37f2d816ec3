"""Who this site is: the signed roster and its keys, which must belong together."""

from __future__ import annotations

from pathlib import Path

from client_agent.settings import AgentSettings
from host.private_files import read_secret
from host.settings import read_text
from host.two_operators import require_apart
from protocol.errors import BadSignature, ConfigurationError
from protocol.wire.authentic import require_roster
from protocol.wire.keyfile import PartyKeys, parse_party_keys, parse_roster
from protocol.wire.messages import Roster


def load_identity(settings: AgentSettings) -> tuple[Roster, PartyKeys]:
    """The signed roster and this site's keys, which must belong together.

    Raises: ConfigurationError; BadSignature when the roster lacks a signature
    """
    roster = signed_roster(settings.roster)
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
    return roster, keys


def signed_roster(path: Path) -> Roster:
    """The roster, signed by both operators and the requester; BadSignature names the file and what to do."""
    signed = parse_roster(read_text(path), str(path))
    try:
        return require_roster(signed)
    except BadSignature as wrong:
        roster = signed.message
        needed = (roster.operator_a.name, roster.operator_b.name, roster.requester)
        lacking = ", ".join(repr(name) for name in needed if signed.signature_of(name) is None)
        who = lacking or "the party whose signature is not valid"
        raise BadSignature(
            f"{path}: {wrong.detail}; ask {who} to run: moiety keys sign {path.name} --key SECRET.TOML"
        ) from None
