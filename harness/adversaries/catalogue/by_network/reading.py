"""A proxy that opens TLS on both connections and only reads: of a whole round, between the servers too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from unittest import mock

import httpx
from fastapi import FastAPI

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.scripted_rounds import SITES, Pair
from harness.federation.memory import apps
from harness.federation.memory.servers import ServersInMemory
from protocol.parameters import Needs
from protocol.wire.channel.sealing import sealed_small_length
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.messages import Message, OutputHeader

_DIMENSION: Final = 2_000
_LEAST_BYTES: Final = 100_000
_OVERHEAD: Final = sealed_small_length(0)


def _open_to_all(content: bytes, to: SealingPublicKey, info: bytes) -> bytes:
    """As long as sealed, and in clear."""
    return content + bytes(_OVERHEAD)


def _unsealed(sealed: bytes, key: SealingKey, info: bytes) -> bytes:
    return sealed[:-_OVERHEAD]


class ReadsARound(Attack):
    """Everything that passes is searched for names and for the keys of every message there is."""

    name = "proxy-reads-a-round"
    party = Party.NETWORK
    tries = "reads all requests and answers of a round, of sites and between the servers, and looks for names and words"
    defence = "envelopes: what is asked and answered is sealed to the other party's key"
    figure = "names of sites, operators and the study, and keys of messages, that it reads"
    without: Mapping[str, object] = {
        "protocol.wire.channel.envelope.seal_small": _open_to_all,
        "protocol.wire.channel.envelope.open_small": _unsealed,
    }

    def attempt(self, folder: Path) -> Found:
        passed: list[bytes] = []
        carry = apps._answer

        async def read(app: FastAPI, request: httpx.Request) -> httpx.Response:
            content = await request.aread()
            answer = await carry(app, request)
            passed.extend((str(request.url).encode(), repr(request.headers).encode(), content))
            passed.extend((repr(answer.headers).encode(), answer.content))
            return answer

        with mock.patch.object(apps, "_answer", read), ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            try:
                opened = pair.round(_DIMENSION, opens=Needs.DISTANCES)
                opened.finish()
                operators = [party.name for party in (servers.roster.operator_a, servers.roster.operator_b)]
            finally:
                pair.close()
        seen = b"\n".join(passed)
        if len(seen) < _LEAST_BYTES or b"/v1/peer/sealed" not in seen:
            raise RuntimeError(f"only {len(seen)} bytes passed the proxy: that was no whole round")
        words = (*SITES, *operators, opened.sites.study.name, *(f'"{key}":' for key in _keys()))
        found = [word for word in words if word.encode() in seen]
        return Found(bool(found), len(found), ", ".join(found[:20]))


def _keys() -> list[str]:
    """Of all messages, but for those of the public header of an output and of a masked sum."""
    return sorted(set(_fields(Message)) - set(OutputHeader.model_fields))


def _fields(message: type[Message]) -> Iterator[str]:
    yield from message.model_fields
    for kind in message.__subclasses__():
        yield from _fields(kind)


def reading_proxies() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (ReadsARound(),)
