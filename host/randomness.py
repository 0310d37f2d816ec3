"""A process's random bytes: from the system, or from a seed in loopback-only federations.

A seeded source names every draw by its purpose (study, round, attempt, ...), so that the bytes do not depend on the
order of the calls and a run can be repeated exactly.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from host.network import is_loopback_url
from protocol.arithmetic.ring import Usage, derive, expand_bytes
from protocol.channel.keys import SEALING_KEY_BYTES, SIGNING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.errors import ConfigurationError
from protocol.messages.control import Role
from protocol.roster.keyfile import PartyKeys


class Randomness(Protocol):
    """A source of random bytes; ``label`` says what they are for and is used once."""

    def bytes(self, count: int, label: str) -> bytes: ...


@dataclass(frozen=True)
class SystemRandomness:
    """The operating system's generator; the label does not matter."""

    def bytes(self, count: int, label: str) -> bytes:
        return secrets.token_bytes(count)


@dataclass(frozen=True)
class SeededRandomness:
    """Reproducible bytes for tests and demonstrations. Whoever knows the seed knows everything."""

    _root: bytes = field(repr=False)

    @classmethod
    def of_site(cls, seed: int, party: str) -> SeededRandomness:
        return cls(derive(seed.to_bytes(32, "big", signed=True), f"agent {party}"))

    @classmethod
    def of_operator(cls, seed: int, party: str) -> SeededRandomness:
        return cls(hashlib.sha256(f"moiety/2 seeded {seed} {party}".encode()).digest())

    def bytes(self, count: int, label: str) -> bytes:
        return expand_bytes(derive(self._root, label), Usage.SEEDED, count)


def site_randomness(seed: int | None, party: str, server_urls: tuple[str, ...]) -> Randomness:
    """The system's source, or the seeded one, which refuses any server that is not on this machine."""
    if seed is None:
        return SystemRandomness()
    away = [url for url in server_urls if not is_loopback_url(url)]
    if away:
        raise ConfigurationError(
            f"key 'seed': set, but {', '.join(away)} is not on this machine; a seed makes every secret predictable: "
            "remove it, or use servers on 127.0.0.1"
        )
    return SeededRandomness.of_site(seed, party)


def server_randomness(seed: int | None, party: str) -> Randomness:
    """As :func:`site_randomness`; a server's settings refuse a seed on any address but loopback."""
    return SystemRandomness() if seed is None else SeededRandomness.of_operator(seed, party)


def new_party_keys(name: str, role: Role) -> PartyKeys:
    """A party's two key pairs, drawn from the system."""
    return PartyKeys(
        name=name,
        role=role,
        signing=generate_signing_key(secrets.token_bytes(SIGNING_KEY_BYTES)),
        sealing=generate_sealing_key(secrets.token_bytes(SEALING_KEY_BYTES)),
    )
