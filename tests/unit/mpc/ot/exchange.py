"""One batch between two servers' sessions, whose messages a test may alter on their way."""

from __future__ import annotations

import copy
import hashlib
from functools import cache

import pytest

from protocol.mpc.product import open_ot_sessions
from protocol.ot.base import DEFAULT_EXTENSION, IKNP, SOFTSPOKEN, Extension
from protocol.ot.session import CorrelationHalf, OtReceiver, OtSender

SESSION = b"session-identifier-0001"
LENGTHS = [(5, 1, 1), (3,), (1, 2)]
EXTENSIONS = pytest.mark.parametrize("extension", [IKNP, SOFTSPOKEN], ids=["iknp", "softspoken"])


def seed(label: str) -> bytes:
    return hashlib.sha256(label.encode()).digest()


def open_pair(label: str = "pair", extension: Extension = DEFAULT_EXTENSION) -> tuple[OtReceiver, OtSender]:
    """Fresh sessions of both servers: copies, since base OTs take longer than what most tests do with them."""
    return copy.deepcopy(_opened(label, extension))


@cache
def _opened(label: str, extension: Extension) -> tuple[OtReceiver, OtSender]:
    return open_ot_sessions(SESSION, seed(label + "a"), seed(label + "b"), extension)


class Exchange:
    """One batch; ``alter`` rewrites a message on its way, by its step's name."""

    def __init__(self, a: OtReceiver, b: OtSender, lengths: list[tuple[int, ...]], label: str = "batch", alter=None):
        self.alter = alter or (lambda _, message: message)
        self.batch_a, columns = a.extend(lengths)
        self.sent = {"columns": columns}
        self.batch_b, challenge = b.challenge(self.carry("columns"), lengths, seed(label + "b"))
        self.sent["challenge"] = challenge
        self.sent["answer"] = a.answer(self.batch_a, self.carry("challenge"))
        self.halves_b, self.sent["products"] = b.respond(self.batch_b, self.carry("answer"))
        self.halves_a = a.finish(self.batch_a, self.carry("products"))

    def carry(self, step: str) -> bytes:
        return self.alter(step, self.sent[step])


def errors(a: CorrelationHalf, b: CorrelationHalf) -> list[int]:
    """c_A + c_B - <a, b> for every product, in Python integers."""
    assert a.lengths == b.lengths
    found, at = [], 0
    for p, length in enumerate(a.lengths):
        pairs = zip(a.vector[at : at + length].tolist(), b.vector[at : at + length].tolist(), strict=True)
        found.append((int(a.products[p]) + int(b.products[p]) - sum(x * y for x, y in pairs)) % 2**64)
        at += length
    return found
