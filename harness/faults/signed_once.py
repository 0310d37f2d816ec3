"""Every signature that is made in this process, and who signed two different things in one place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock

from protocol.wire import authentic
from protocol.wire.keys import SigningKey
from protocol.wire.messages import Message, RoundOutcome, Signature

_PLACE: Final = ("study_digest", "round", "attempt", "site", "side", "recipient", "number")
_MADE_IN: Final = ("protocol.wire.authentic.signature_by", "servers.server.signature_by")
_MADE: Final = authentic.signature_by
_VALUE: Final = re.compile(rb'"value":"([0-9a-f]{128})"')


@dataclass(frozen=True)
class _Signed:
    place: tuple[str, ...]
    digest: str

    @property
    def words(self) -> str:
        return f"{self.place[0]} signed two of {self.place[1]} for {'/'.join(self.place[3:5])}"


class SignedOnce:
    """A place: a signer, a kind of message, and which study, round and attempt it speaks of.

    ``when_it_leaves``: what was signed counts once it is in a body that ``left`` is told of. A server whose disk is
    full, or that dies, signs and forgets: it may sign something else later, since nobody has seen the first.
    """

    def __init__(self, *, when_it_leaves: bool = False) -> None:
        self.twice: list[str] = []
        self._signed: dict[tuple[str, ...], str] = {}
        self._here: dict[bytes, _Signed] | None = {} if when_it_leaves else None

    def left(self, body: bytes) -> None:
        """These bytes were sent, whether they arrive or not."""
        if self._here:
            for value in _VALUE.findall(body):
                found = self._here.pop(value, None)
                if found is not None:
                    self._counts(found)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place in _MADE_IN:
                stack.enter_context(mock.patch(place, self._signature_by))
            yield

    def _signature_by(self, signer: str, key: SigningKey, message: Message) -> Signature:
        made = _MADE(signer, key, message)
        if hasattr(message, "study_digest"):
            places = (str(getattr(message, name, "")) for name in _PLACE)
            digest = hashlib.sha256(message.canonical()).hexdigest()
            found = _Signed((signer, message.KIND, *places, _end(message)), digest)
            if self._here is None:
                self._counts(found)
            else:
                self._here[made.value.encode()] = found
        return made

    def _counts(self, found: _Signed) -> None:
        if self._signed.setdefault(found.place, found.digest) != found.digest:
            self.twice.append(found.words)


def _end(message: Message) -> str:
    """A burn may be followed by a skip of the same attempt: B's opening undoes it (docs/protocol.md 7)."""
    return message.outcome.value if isinstance(message, RoundOutcome) else ""
