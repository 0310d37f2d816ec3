"""Attacks from outside and from one site, on a federation of one's own or on servers that run somewhere.

They leave nothing behind where they are refused: a request is answered or not, a letter is too long to be stored.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx

from harness.adversaries import requests
from harness.adversaries.catalogue.attack import NO_SIGNATURE_COUNTS, Attack, Found, Party, passes
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.adversaries.scripted_rounds import SITES, SMALL, VICTIM
from harness.adversaries.signed_client import Outgoing, SignedClient
from harness.federation.memory.servers import ServersInMemory
from host.clock import SYSTEM, Clock
from host.private_files import read_secret
from host.settings import read_text
from protocol.errors import BrokenSeal, ConfigurationError
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import require_roster
from protocol.wire.keyfile import PartyKeys, parse_party_keys, parse_roster
from protocol.wire.messages import Roster

_HOUR_S: Final = 3600
_SIGNATURE: Final = "the signature of every request, by a key of the roster"
_MEGABYTE: Final = 2**20


@dataclass
class Deployment:
    """Two servers that run somewhere, as the site whose keys these are reaches them; ``study`` is one of theirs."""

    roster: Roster
    own: PartyKeys = field(repr=False)
    ca_file: Path
    study: str
    clock: Clock = SYSTEM
    connect: Callable[[], httpx.BaseTransport] | None = None
    folder: Path = Path()

    @classmethod
    def named(cls, roster: Path, keys: Path, ca: Path, study: str) -> Deployment:
        """Raises: ConfigurationError; BadSignature when the roster lacks a signature"""
        signed = require_roster(parse_roster(read_text(roster), str(roster)))
        own = parse_party_keys(read_secret(keys), str(keys))
        if own.name not in {site.name for site in signed.sites}:
            raise ConfigurationError(f"{keys} holds the keys of {own.name!r}, which is no site of {roster}")
        return cls(signed, own, ca, study)

    def url(self, side: Side) -> str:
        return there(self.roster.operator(side).url, f"address of server {side.value}")

    def keys(self, name: str) -> PartyKeys:
        return self.own

    def tails(self) -> str:
        return ""


class DeployedAttack(Attack):
    """An attack that needs no more than a site's keys, or none, and so runs on servers that run somewhere too."""

    @abstractmethod
    def on(self, place: Deployment) -> Found:
        """Against servers that run somewhere."""


class OutsideAttack(DeployedAttack):
    """Requests that need no more than a site's keys, or none; it succeeds when one of them is taken."""

    figure = "hostile requests that a server took"

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            sites = ScriptedSites(servers, make_study(servers, SMALL))
            try:
                sites.create()
                return self.at(sites.clients[VICTIM], sites.study.name)
            finally:
                sites.close()

    def on(self, place: Deployment) -> Found:
        client = SignedClient(place, place.own)
        try:
            return self.at(client, place.study)
        finally:
            client.close()

    def at(self, client: SignedClient, study: str) -> Found:
        taken = sum(answer.is_success for answer in self._asked(client, study))
        return Found(taken > 0, taken)

    @abstractmethod
    def _asked(self, client: SignedClient, study: str) -> list[httpx.Response]:
        """What both servers answer."""


def _view(client: SignedClient, study: str, side: Side, created: int | None = None) -> Outgoing:
    return client.enclose(side, "GET", paths.fill(paths.VIEW, study=study), created=created)


class InAnothersName(OutsideAttack):
    name = "request-in-anothers-name"
    party = Party.STRANGER
    tries = "reads a study as one of its sites, signed by a key of its own"
    defence = _SIGNATURE
    without: Mapping[str, object] = NO_SIGNATURE_COUNTS

    def _asked(self, client: SignedClient, study: str) -> list[httpx.Response]:
        other = next(site.name for site in client.federation.roster.sites if site.name != client.keys.name)
        pretended = replace(requests.impostor(client.keys, secrets.token_bytes(32)), name=other)
        forged = SignedClient(client.federation, pretended)
        try:
            return [_answered(forged, _view(forged, study, side)) for side in Side]
        finally:
            forged.close()


def _answered(forged: SignedClient, asked: Outgoing) -> httpx.Response:
    """A server that believes it seals its answer to the site whose name was taken."""
    try:
        return forged.post(asked)
    except BrokenSeal:
        return httpx.Response(httpx.codes.OK)


class Replayed(OutsideAttack):
    name = "request-replayed"
    party = Party.NETWORK
    tries = "sends a recorded request once more"
    defence = "nonces, kept as long as a signature is young enough"
    without: Mapping[str, object] = {"servers.store.sql.SqlStore.remember_nonce": passes}

    def _asked(self, client: SignedClient, study: str) -> list[httpx.Response]:
        asked = [_view(client, study, side) for side in Side]
        for one in asked:
            client.post(one)
        return [client.post(one) for one in asked]


class Delayed(OutsideAttack):
    name = "request-delayed"
    party = Party.NETWORK
    tries = "holds a request back for an hour"
    defence = "the age of a signature"
    without: Mapping[str, object] = {
        "protocol.wire.channel.signing.require_time": passes,
        "servers.roster.sessions.require_time": passes,
    }

    def _asked(self, client: SignedClient, study: str) -> list[httpx.Response]:
        then = int(client.federation.clock.now()) - _HOUR_S
        return [client.post(_view(client, study, side, then)) for side in Side]


class LongLetter(OutsideAttack):
    name = "letter-of-a-megabyte"
    party = Party.SITE
    tries = "leaves a letter that is far longer than any notice"
    defence = "letters have one length, which is checked before a byte of them is read"
    without: Mapping[str, object] = {
        "servers.routes.mail.most_bytes": lambda *_: 2**22,
        "servers.routes.mail.require_length": passes,
    }

    def _asked(self, client: SignedClient, study: str) -> list[httpx.Response]:
        requester = client.federation.roster.requester
        path = paths.fill(paths.MAIL, study=study, topic="refusal", recipient=requester)
        return [client.send(Side.A, "PUT", path, bytes(_MEGABYTE))]


def outside_attacks() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return InAnothersName(), Replayed(), Delayed(), LongLetter()
