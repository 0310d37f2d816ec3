"""Keys and a signed roster for a whole federation on one machine, for the demo, simulations and tests.

Here one place makes everybody's keys, which a real federation never does: there every party runs ``moiety keys``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.arithmetic.ring import Usage, derive, expand_bytes
from protocol.channel.keys import generate_sealing_key, generate_signing_key
from protocol.errors import ConfigurationError
from protocol.messages.control import Role, Roster, Signed, countersign, sign
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

OPERATOR_NAMES = {Side.A: "operator-a", Side.B: "operator-b"}
_UNUSED_URLS = {Side.A: "https://a.invalid", Side.B: "https://b.invalid"}


@dataclass(frozen=True)
class SiteEntry:
    """A site's name and |S_i|, its number of training samples."""

    name: str
    samples: int


@dataclass(frozen=True)
class Parties:
    """A federation's signed roster and every party's secret keys."""

    roster: Signed[Roster]
    keys: tuple[PartyKeys, ...] = field(repr=False)

    def keys_of(self, name: str) -> PartyKeys:
        """ConfigurationError for a name that is not in the federation."""
        for keys in self.keys:
            if keys.name == name:
                return keys
        raise ConfigurationError(f"no party {name!r}; the federation has {', '.join(k.name for k in self.keys)}")


def make_parties(
    federation: str,
    requester: str,
    sites: Sequence[SiteEntry],
    seed: bytes,
    urls: dict[Side, str] | None = None,
) -> Parties:
    """Keys derived from the 32-byte ``seed``, and a roster signed by both operators and the requester."""
    addresses = urls or _UNUSED_URLS
    operators = {side: _party_keys(OPERATOR_NAMES[side], Role.OPERATOR, seed) for side in Side}
    site_keys = {site.name: _party_keys(site.name, Role.SITE, seed) for site in sites}
    roster = Roster(
        federation=federation,
        operator_a=operators[Side.A].party(url=addresses[Side.A]),
        operator_b=operators[Side.B].party(url=addresses[Side.B]),
        requester=requester,
        sites=tuple(site_keys[site.name].party(samples=site.samples) for site in sites),
    )
    signed = sign(roster, operators[Side.A].name, operators[Side.A].signing)
    for keys in (operators[Side.B], site_keys[requester]):
        signed = countersign(signed, keys.name, keys.signing)
    return Parties(signed, (*operators.values(), *site_keys.values()))


def _party_keys(name: str, role: Role, seed: bytes) -> PartyKeys:
    own = derive(seed, f"keys of {name}")
    return PartyKeys(
        name=name,
        role=role,
        signing=generate_signing_key(derive(own, "signing")),
        sealing=generate_sealing_key(expand_bytes(derive(own, "sealing"), Usage.SEEDED, 96)),
    )
