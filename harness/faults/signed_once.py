"""Every signature that is made in this process, and who signed two different things in one place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from protocol.wire import authentic
from protocol.wire.keys import SigningKey
from protocol.wire.messages import Message, RoundOutcome, Signature

_PLACE: Final = ("study_digest", "round", "attempt", "site", "side", "recipient", "number")
_MADE_IN: Final = ("protocol.wire.authentic.signature_by", "servers.server.signature_by")
_MADE: Final = authentic.signature_by


class SignedOnce:
    """A place: a signer, a kind of message, and which study, round and attempt it speaks of."""

    def __init__(self) -> None:
        self.twice: list[str] = []
        self._signed: dict[tuple[str, ...], str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place in _MADE_IN:
                stack.enter_context(mock.patch(place, self._signature_by))
            yield

    def _signature_by(self, signer: str, key: SigningKey, message: Message) -> Signature:
        self._saw(signer, message)
        return _MADE(signer, key, message)

    def _saw(self, signer: str, message: Message) -> None:
        if not hasattr(message, "study_digest"):
            return
        place = (signer, message.KIND, *(str(getattr(message, name, "")) for name in _PLACE), _end(message))
        digest = hashlib.sha256(message.canonical()).hexdigest()
        if self._signed.setdefault(place, digest) != digest:
            self.twice.append(f"{signer} signed two of {message.KIND} for {'/'.join(place[3:5])}")


def _end(message: Message) -> str:
    """A burn may be followed by a skip of the same attempt: B's opening undoes it (docs/protocol.md 7)."""
    return message.outcome.value if isinstance(message, RoundOutcome) else ""
