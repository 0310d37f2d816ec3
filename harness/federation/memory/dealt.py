"""Correlations dealt in place of oblivious transfer: the same steps and messages, without the work.

For servers in one process only, which see each other's memory anyway; a deployed server knows no dealer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol.arithmetic.ring import derive
from protocol.mpc.product import dealer_pair
from protocol.ot.session import CorrelationHalf, LengthsList, ReceiverBatch, SenderBatch

_NOTHING = np.zeros(0, dtype=np.uint64)
_NO_BYTES = np.zeros(0, dtype=np.uint8)


def _halves(session_id: bytes, number: int, lengths_list: LengthsList, place: int) -> list[CorrelationHalf]:
    """Side A's for place 0, side B's for place 1."""
    return dealer_pair(lengths_list, derive(session_id, f"dealt batch {number}"))[place]


@dataclass(eq=False)
class _Receiver:
    session_id: bytes
    batches: int = 0

    def extend(self, lengths_list: LengthsList) -> tuple[ReceiverBatch, bytes]:
        batch = ReceiverBatch(list(lengths_list), self.batches, 0, _NOTHING, _NO_BYTES, _NO_BYTES)
        self.batches += 1
        return batch, b""

    def answer(self, batch: ReceiverBatch, challenge: bytes) -> bytes:
        return b""

    def finish(self, batch: ReceiverBatch, products: bytes) -> list[CorrelationHalf]:
        return _halves(self.session_id, batch.number, batch.lengths_list, 0)

    def close(self) -> None:
        return


@dataclass(eq=False)
class _Sender:
    session_id: bytes
    batches: int = 0

    def finish(self, reply: bytes) -> _Sender:
        return self

    def challenge(self, message: bytes, lengths_list: LengthsList, rand: bytes) -> tuple[SenderBatch, bytes]:
        batch = SenderBatch(list(lengths_list), self.batches, 0, b"", _NO_BYTES)
        self.batches += 1
        return batch, b""

    def respond(self, batch: SenderBatch, answer: bytes) -> tuple[list[CorrelationHalf], bytes]:
        return _halves(self.session_id, batch.number, batch.lengths_list, 1), b""

    def close(self) -> None:
        return


class Dealt:
    """Both servers' halves follow from the session's name."""

    def receiver(self, session_id: bytes, message: bytes, rand: bytes) -> tuple[_Receiver, bytes]:
        return _Receiver(session_id), b""

    def sender(self, session_id: bytes, rand: bytes) -> tuple[_Sender, bytes]:
        return _Sender(session_id), b""
