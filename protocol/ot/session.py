"""A session of OT correlations between the two servers, as numbered steps without I/O.

It gives A random vectors a and shares c_A, B random vectors b and shares c_B, with c_A + c_B = <a, b>, and nothing
else to either. Base OTs: Masny and Rindal 2019. Extension: SoftSpokenOT (Roy 2022), which reads Delta as digits and
grows a tree of keys for each. Consistency check: Keller, Orsini and Scholl 2015, as Roy repaired it. Products: Gilboa
1999. In the base OTs the roles are reversed: B, the extension's sender, receives with the bits of Delta.

    B  OtSender.open            --- base OTs -->        A  OtReceiver.open
    B  OtSenderOpening.finish   <-- base OTs, trees ---
    then, for every batch of contributors:
    A  extend     --- columns U -->        B  challenge
    A  answer     <-- chi ---
                  --- x~, t~ -->           B  respond
    A  finish     <-- products ---

Both sides name the same ``Extension``. A's vector a is the OTs' random choice bits and B's vector b follows from pads,
so neither is an argument.

Every batch message begins with the batch's number. A message that is malformed or comes at the wrong time changes
nothing. A failed consistency check closes the session: Delta is overwritten and every later call refused. A session
lives in memory only; after a restart a new one is opened. Not for use from two threads at once.

Reveals:  to each server only its own halves
Raises:   MalformedMessage, ProtocolViolation, ConsistencyCheckFailed
Source:   docs/protocol.md 7
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import ring
from protocol.arithmetic.ring import Ring, derive
from protocol.errors import ConsistencyCheckFailed, MalformedMessage, ProtocolViolation
from protocol.ot import base, gilboa
from protocol.ot.base import DEFAULT_EXTENSION, Extension
from protocol.ot.extension import (
    CHECK_ANSWER_BYTES,
    CHI_BYTES,
    CheckAnswer,
    Columns,
    check_answer,
    column_bytes,
    correction_bytes,
    next_position,
    receiver_columns,
    row_count,
    sender_columns,
    verify_check,
)
from protocol.ot.gilboa import RowHash


@dataclass(frozen=True)
class CorrelationHalf:
    """A's half holds (a, c_A), B's (b, c_B), with c_A[p] + c_B[p] = <a, b> over product p's segment.

    Single use: a second sketch masked by the same half would give linear equations in the difference.

    Shapes:   vector uint64[sum(lengths)], products uint64[len(lengths)], ring 2^64
    Raises:   ProtocolViolation, when the shapes do not fit ``lengths``
    """

    lengths: tuple[int, ...]
    vector: Ring = field(repr=False)
    products: Ring = field(repr=False)

    def __post_init__(self) -> None:
        shapes = (self.vector.shape, self.products.shape)
        if shapes != ((sum(self.lengths),), (len(self.lengths),)) or min(self.lengths, default=0) < 1:
            raise ProtocolViolation(
                f"a correlation for product lengths {self.lengths} can't have shapes {shapes}; lengths are at least "
                "1 and name every element once"
            )


def split_halves(lengths_list: list[tuple[int, ...]], vector: Ring, products: Ring) -> list[CorrelationHalf]:
    """Cut a whole batch's vector and products into one half per contributor; the halves own their memory."""
    elements = np.cumsum([0, *(sum(lengths) for lengths in lengths_list)])
    places = np.cumsum([0, *(len(lengths) for lengths in lengths_list)])
    return [
        CorrelationHalf(
            lengths, vector[elements[i] : elements[i + 1]].copy(), products[places[i] : places[i + 1]].copy()
        )
        for i, lengths in enumerate(lengths_list)
    ]


def segment_sums(lengths_list: list[tuple[int, ...]], terms: Ring) -> Ring:
    """Sum the elements' terms over each product's segment, modulo 2^64."""
    lengths = [length for group in lengths_list for length in group]
    return np.add.reduceat(terms, np.cumsum([0, *lengths[:-1]]))


def checked_lengths(lengths_list: list[tuple[int, ...]]) -> int:
    """The number of elements in a batch.

    Raises:   ProtocolViolation, when there is no product or one of length 0
    """
    if not lengths_list or any(min(lengths, default=0) < 1 for lengths in lengths_list):
        raise ProtocolViolation(
            "a batch needs at least one contributor, each at least one product, each of length 1 or more; found "
            f"{lengths_list}"
        )
    return sum(sum(lengths) for lengths in lengths_list)


BATCH_NUMBER_BYTES: Final = 8
CHALLENGE_MESSAGE_BYTES: Final = BATCH_NUMBER_BYTES + CHI_BYTES
ANSWER_MESSAGE_BYTES: Final = BATCH_NUMBER_BYTES + CHECK_ANSWER_BYTES
BATCH_ELEMENTS: Final = 1 << 14
"""A batch's messages take about 410 bytes per element; a contributor that needs more gets a batch of its own."""
SITE_ELEMENTS: Final = (1 << 18) + BATCH_ELEMENTS
"""The most that one site may need: one inner product of the longest sketch, or 135 pairs of the default one."""
_CLOSED: Final = "closed"
_WIRE: Final = np.dtype("<u8")
LengthsList: TypeAlias = list[tuple[int, ...]]


def extension_message_bytes(elements: int, extension: Extension = DEFAULT_EXTENSION) -> int:
    """Size of U for a batch of so many elements."""
    return BATCH_NUMBER_BYTES + correction_bytes(elements, extension)


def products_message_bytes(elements: int) -> int:
    """Size of B's last message for a batch of so many elements."""
    return BATCH_NUMBER_BYTES + gilboa.ELEMENT_MESSAGE_BYTES * elements


@dataclass(frozen=True, eq=False)
class ReceiverBatch:
    """A's batch under way: a and the columns t. A handle for the session's next step, good for one use."""

    lengths_list: LengthsList = field(repr=False)
    number: int
    first_row: int
    own: Ring = field(repr=False)
    choices: NDArray[np.uint8] = field(repr=False)
    columns: Columns = field(repr=False)


@dataclass(frozen=True, eq=False)
class SenderBatch:
    """B's batch under way: chi and the columns q. A handle, good for one use."""

    lengths_list: LengthsList = field(repr=False)
    number: int
    first_row: int
    chi: bytes = field(repr=False)
    columns: Columns = field(repr=False)


class _Session:
    """The state of either side: the step that is due, and the counters that must never go back."""

    _first_step: ClassVar[str]

    def __init__(self, keys: base.Keys, transcript_key: bytes, extension: Extension) -> None:
        self._keys = keys
        self._extension = extension
        self._row_hash = RowHash(transcript_key)
        self._due = self._first_step
        self._batch: ReceiverBatch | SenderBatch | None = None
        self._number = 0
        self._position = 0
        self._first_row = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(due={self._due!r}, batches={self._number})"

    @property
    def closed(self) -> bool:
        """True once no further step is possible."""
        return self._due == _CLOSED

    def _require(self, step: str, batch: ReceiverBatch | SenderBatch | None = None) -> None:
        if self._due != step or batch is not self._batch:
            raise ProtocolViolation(
                f"{type(self).__name__}.{step} came where {self._due!r} of batch {self._number} is due; each step runs "
                "once, in order; a closed session is replaced by a new one"
            )

    def _begin(self, batch: ReceiverBatch | SenderBatch, elements: int, due: str) -> None:
        self._position = next_position(self._position, elements)
        self._first_row += row_count(elements)
        self._batch, self._due = batch, due

    def _end(self) -> None:
        self._number += 1
        self._batch, self._due = None, self._first_step

    def _pack(self, body: bytes) -> bytes:
        return self._number.to_bytes(BATCH_NUMBER_BYTES, "little") + body

    def _unpack(self, message: bytes, length: int) -> memoryview:
        if len(message) != length:
            raise MalformedMessage(f"this step's message has {length} bytes, found {len(message)}; check the lengths")
        number = int.from_bytes(message[:BATCH_NUMBER_BYTES], "little")
        if number != self._number:
            raise ProtocolViolation(f"the message belongs to batch {number}, batch {self._number} is under way")
        return memoryview(message)[BATCH_NUMBER_BYTES:]

    def _close(self, *secrets: NDArray[np.uint8]) -> None:
        for secret in secrets:
            secret.fill(0)
        self._batch, self._due = None, _CLOSED


class OtReceiver(_Session):
    """Server A's side: its vector's bits are the choice bits. Open it with :meth:`open`."""

    _first_step = "extend"

    @classmethod
    def open(
        cls,
        session_id: bytes,
        message: bytes,
        rand: bytes,
        extension: Extension = DEFAULT_EXTENSION,
    ) -> tuple[OtReceiver, bytes]:
        """Answer B's base OT message; the session is ready, B's once it has the reply.

        Shapes:   rand 32 fresh bytes: the only secret from which all of A's vectors follow
        """
        keys0, keys1, points = base.sender_reply(session_id, message, rand)
        keys, sums = base.grow_trees(session_id, extension, keys0, keys1)
        reply = points + sums
        return cls(keys, base.transcript_key(session_id, message, reply), extension), reply

    def extend(self, lengths_list: LengthsList) -> tuple[ReceiverBatch, bytes]:
        """Step 1: a for every contributor of the batch; -> U."""
        self._require("extend")
        elements = checked_lengths(lengths_list)
        choices, columns, correction = receiver_columns(
            self._extension, self._keys, column_bytes(elements), self._position
        )
        own = choices[: ring.ELEMENT_BYTES * elements].view(_WIRE).astype(np.uint64)
        batch = ReceiverBatch(list(lengths_list), self._number, self._first_row, own, choices, columns)
        self._begin(batch, elements, "answer")
        return batch, self._pack(correction.tobytes())

    def answer(self, batch: ReceiverBatch, challenge: bytes) -> bytes:
        """Step 3: the consistency check's x~ and t~ for B's chi. A second chi for the same batch is refused."""
        self._require("answer", batch)
        chi = bytes(self._unpack(challenge, CHALLENGE_MESSAGE_BYTES))
        answer = check_answer(chi, batch.choices, batch.columns)
        self._due = "finish"
        return self._pack(answer.to_bytes())

    def finish(self, batch: ReceiverBatch, products: bytes) -> list[CorrelationHalf]:
        """Step 5: A's halves (a, c_A), one per contributor."""
        self._require("finish", batch)
        message = self._unpack(products, products_message_bytes(batch.own.size))
        terms = gilboa.receiver_terms(self._row_hash, batch.columns, batch.own, message, first_row=batch.first_row)
        self._end()
        return split_halves(batch.lengths_list, batch.own, segment_sums(batch.lengths_list, terms))

    def close(self) -> None:
        """Overwrite the keys, as far as Python lets one; every later call is refused."""
        self._close(self._keys)


class OtSenderOpening:
    """Server B between its base OT message and A's reply. Good for one reply: two would be two guesses at one Delta."""

    def __init__(self, state: base.BaseOtReceiver, extension: Extension) -> None:
        self._state: base.BaseOtReceiver | None = state
        self._extension = extension

    def __repr__(self) -> str:
        due = _CLOSED if self._state is None else "finish"
        return f"{type(self).__name__}(due={due!r})"

    def finish(self, reply: bytes) -> OtSender:
        """Take A's reply; B's session is ready. A malformed reply changes nothing.

        Raises:   MalformedMessage; ProtocolViolation, on a second reply; ConsistencyCheckFailed, when A's trees are
                  not valid: Delta is gone
        """
        state = self._state
        if state is None:
            raise ProtocolViolation("this opening has had its reply; draw a new Delta in a new session")
        points, sums = reply[: base.SENDER_MESSAGE_BYTES], reply[base.SENDER_MESSAGE_BYTES :]
        chosen = base.receiver_finish(state, points)
        base.require_tree_message(self._extension, sums)
        self._state = None
        keys = base.puncture_trees(state.session_id, self._extension, state.delta, chosen, sums)
        key = base.transcript_key(state.session_id, state.message, reply)
        return OtSender(keys, state.delta, key, self._extension)


class OtSender(_Session):
    """Server B's side: it holds Delta and draws chi. Open it with :meth:`open`."""

    _first_step = "challenge"

    def __init__(self, keys: base.Keys, delta: bytes, transcript_key: bytes, extension: Extension) -> None:
        super().__init__(keys, transcript_key, extension)
        self._delta = np.frombuffer(delta, dtype=np.uint8).copy()

    @staticmethod
    def open(session_id: bytes, rand: bytes, extension: Extension = DEFAULT_EXTENSION) -> tuple[OtSenderOpening, bytes]:
        """Draw Delta and begin; -> the base OT message for A.

        Shapes:   session_id 16 to 64 bytes, never used before; rand 32 fresh bytes
        """
        base.require_bytes("rand", rand, base.SEED_BYTES)
        delta = derive(rand, "delta")[: base.DELTA_BYTES]
        state, message = base.receiver_message(session_id, delta, derive(rand, "base ots"))
        return OtSenderOpening(state, extension), message

    def challenge(self, message: bytes, lengths_list: LengthsList, rand: bytes) -> tuple[SenderBatch, bytes]:
        """Step 2: take U, then draw chi; -> chi.

        Shapes:   rand 32 fresh bytes, drawn after U arrived
        """
        self._require("challenge")
        elements = checked_lengths(lengths_list)
        base.require_bytes("rand", rand, base.SEED_BYTES)
        body = self._unpack(message, extension_message_bytes(elements, self._extension))
        correction = np.frombuffer(body, dtype=np.uint8).reshape(-1, column_bytes(elements))
        columns = sender_columns(self._extension, self._keys, self._delta.tobytes(), correction, self._position)
        chi = derive(rand, "chi")[:CHI_BYTES]
        batch = SenderBatch(list(lengths_list), self._number, self._first_row, chi, columns)
        self._begin(batch, elements, "respond")
        return batch, self._pack(chi)

    def respond(self, batch: SenderBatch, answer: bytes) -> tuple[list[CorrelationHalf], bytes]:
        """Step 4: check A's columns; -> B's halves (b, c_B), and the products' messages.

        Nothing that depends on Delta leaves before the check has passed.

        Raises:   ConsistencyCheckFailed; the session is then closed and Delta gone
        """
        self._require("respond", batch)
        claimed = CheckAnswer.from_bytes(bytes(self._unpack(answer, ANSWER_MESSAGE_BYTES)))
        delta = self._delta.tobytes()
        try:
            verify_check(batch.chi, delta, batch.columns, claimed)
        except ConsistencyCheckFailed:
            self.close()
            raise
        elements = checked_lengths(batch.lengths_list)
        own, body, terms = gilboa.sender_terms(
            self._row_hash, batch.columns, delta, elements, first_row=batch.first_row
        )
        message = self._pack(body)
        self._end()
        return split_halves(batch.lengths_list, own, segment_sums(batch.lengths_list, terms)), message

    def close(self) -> None:
        """Overwrite Delta and the keys, as far as Python lets one; every later call is refused."""
        self._close(self._delta, self._keys)
