"""Cards and keys for tests of enrolment, made from seeds."""

from __future__ import annotations

import hashlib

from protocol.channel.keys import SEALING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.messages.control import Party, Role
from protocol.roster.enrolment import OperatorCard
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

FEDERATION = "clinics"


def keys_of(name: str, role: Role = Role.SITE, seed: str = "") -> PartyKeys:
    """Keys that depend on the name and the seed alone."""
    rand = hashlib.shake_256(f"{name} {seed}".encode()).digest(32 + SEALING_KEY_BYTES)
    signing, sealing = generate_signing_key(rand[:32]), generate_sealing_key(rand[32:])
    return PartyKeys(name=name, role=role, signing=signing, sealing=sealing)


def operator_card(side: Side, federation: str = FEDERATION, url: str | None = None) -> OperatorCard:
    """Of operator-a or operator-b."""
    url = url or f"https://{side.value}.example:8443"
    party = keys_of(f"operator-{side.value}", Role.OPERATOR).party(url=url)
    return OperatorCard(federation=federation, side=side, party=party)


def site_party(name: str, samples: int = 100, seed: str = "") -> Party:
    return keys_of(name, seed=seed).party(samples=samples)
