"""The oblivious transfer behind the correlations, step by step: whoever starts a server says which one it runs."""

from __future__ import annotations

from typing import Final, Protocol

from protocol.ot.session import CorrelationHalf, LengthsList, OtReceiver, OtSender, ReceiverBatch, SenderBatch


class Receiver(Protocol):
    """Side A of an open session."""

    def extend(self, lengths_list: LengthsList) -> tuple[ReceiverBatch, bytes]: ...
    def answer(self, batch: ReceiverBatch, challenge: bytes) -> bytes: ...
    def finish(self, batch: ReceiverBatch, products: bytes) -> list[CorrelationHalf]: ...
    def close(self) -> None: ...


class Sender(Protocol):
    """Side B of an open session."""

    def challenge(self, message: bytes, lengths_list: LengthsList, rand: bytes) -> tuple[SenderBatch, bytes]: ...
    def respond(self, batch: SenderBatch, answer: bytes) -> tuple[list[CorrelationHalf], bytes]: ...
    def close(self) -> None: ...


class SenderOpening(Protocol):
    """Side B of a session that waits for side A's reply."""

    def finish(self, reply: bytes) -> Sender: ...


class Transfer(Protocol):
    """Opens sessions; the real one, or one whose correlations a test deals."""

    def receiver(self, session_id: bytes, message: bytes, rand: bytes) -> tuple[Receiver, bytes]: ...
    def sender(self, session_id: bytes, rand: bytes) -> tuple[SenderOpening, bytes]: ...


class ObliviousTransfer:
    """The protocol's (docs/protocol.md 7)."""

    def receiver(self, session_id: bytes, message: bytes, rand: bytes) -> tuple[Receiver, bytes]:
        return OtReceiver.open(session_id, message, rand)

    def sender(self, session_id: bytes, rand: bytes) -> tuple[SenderOpening, bytes]:
        return OtSender.open(session_id, rand)


OBLIVIOUS: Final = ObliviousTransfer()
