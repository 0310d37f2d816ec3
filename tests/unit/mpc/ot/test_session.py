"""A whole session: products, order, lengths, replay, and the attack that the consistency check stops."""

from __future__ import annotations

import hashlib
from typing import NoReturn

import numpy as np
import pytest

from protocol.errors import ConsistencyCheckFailed, MalformedMessage, ProtocolViolation
from protocol.mpc.correlation import CorrelationHalf, open_ot_sessions
from protocol.mpc.ot import check, session
from protocol.mpc.ot.kernels import NUMBA, NUMPY, OtKernels
from protocol.mpc.ot.session import OtReceiver, OtSender, ReceiverBatch, SenderBatch

SESSION = b"session-identifier-0001"
LENGTHS = [(5, 1, 1), (3,), (1, 2)]
CONTRIBUTOR = (2048,) + (1,) * 40
STEPS = ("columns", "challenge", "answer", "products")


def seed(label: str) -> bytes:
    return hashlib.sha256(label.encode()).digest()


def open_pair(label: str = "pair", kernels: OtKernels = NUMBA) -> tuple[OtReceiver, OtSender]:
    return open_ot_sessions(SESSION, seed(label + "a"), seed(label + "b"), kernels)


class Exchange:
    """One batch; ``alter`` rewrites a message on its way, by its step's name."""

    def __init__(self, a: OtReceiver, b: OtSender, lengths: list[tuple[int, ...]], label: str = "batch", alter=None):
        self.alter = alter or (lambda _, message: message)
        self.batch_a, columns = a.extend(lengths, seed(label + "a"))
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


def flip(message: bytes, column: int, rows: list[int], elements: int) -> bytes:
    """Other choice bits in one column of U, in the given rows."""
    body = np.frombuffer(message, np.uint8).copy()
    columns = body[session.BATCH_NUMBER_BYTES :].reshape(128, -1)
    assert columns.shape[1] == 8 * elements + 24
    for row in rows:
        columns[column, row // 8] ^= 1 << (row % 8)
    return body.tobytes()


def delta_bits(b: OtSender) -> np.ndarray:
    return np.unpackbits(b._delta, bitorder="little")


@pytest.mark.parametrize("kernels", [NUMBA, NUMPY], ids=["numba", "numpy"])
def test_every_product_is_exact_over_several_batches(kernels: OtKernels):
    a, b = open_pair(kernels=kernels)
    vectors = set()
    for label in ("first", "second", "third"):
        done = Exchange(a, b, LENGTHS, label)
        assert [half.lengths for half in done.halves_a] == LENGTHS
        for one, other in zip(done.halves_a, done.halves_b, strict=True):
            assert errors(one, other) == [0] * len(one.lengths)
            vectors |= {one.vector.tobytes(), other.vector.tobytes()}
    assert len(vectors) == 3 * 2 * len(LENGTHS)


def test_the_twins_send_the_same_bytes():
    sent = [Exchange(*open_pair(kernels=kernels), LENGTHS).sent for kernels in (NUMBA, NUMPY)]
    assert sent[0] == sent[1]


def test_a_contributor_costs_less_than_three_megabytes():
    done = Exchange(*open_pair(), [CONTRIBUTOR])
    assert errors(done.halves_a[0], done.halves_b[0]) == [0] * 41
    assert len(done.sent["columns"]) == session.extension_message_bytes(2088)
    assert len(done.sent["products"]) == session.products_message_bytes(2088)
    assert sum(map(len, done.sent.values())) == 2_686_176 < 3_000_000


def test_streams_and_row_indices_are_never_reused():
    a, b = open_pair()
    same = [Exchange(a, b, [(2,)], "same"), Exchange(a, b, [(2,)], "same")]
    np.testing.assert_array_equal(same[0].halves_a[0].vector, same[1].halves_a[0].vector)
    assert (same[0].batch_a.columns != same[1].batch_a.columns).any(axis=1).all()
    assert (same[0].batch_b.columns != same[1].batch_b.columns).any(axis=1).all()
    assert same[1].batch_a.first_row == same[1].batch_b.first_row == 64 * 2 + 192


def test_the_extra_choice_bits_belong_to_no_element():
    done = Exchange(*open_pair(), [(2,)])
    assert done.batch_a.choices.size == 8 * 2 + 24
    assert done.batch_a.choices[:16].tobytes() == done.halves_a[0].vector.astype("<u8").tobytes()
    assert len(set(done.batch_a.choices[16:].tolist())) > 1


def test_one_flipped_choice_bit_is_caught_when_delta_shows_it():
    """A column that differs is noticed if and only if Delta has that bit: each guess passes with probability 1/2."""
    chosen = delta_bits(open_pair()[1])
    for column in (int(np.flatnonzero(chosen)[0]), int(np.flatnonzero(chosen)[-1])):
        a, b = open_pair()
        with pytest.raises(ConsistencyCheckFailed):
            Exchange(a, b, [(4,)], alter=on_columns(column, [17], 4))
    a, b = open_pair()
    Exchange(a, b, [(4,)], alter=on_columns(int(np.flatnonzero(chosen == 0)[0]), [17], 4))
    assert not b.closed


def on_columns(column: int, rows: list[int], elements: int):
    return lambda step, message: flip(message, column, rows, elements) if step == "columns" else message


@pytest.mark.parametrize("rows", [list(range(64)), list(range(4 * 64 + 192)), [4 * 64 + 191]])
def test_other_choice_bits_in_part_or_all_of_a_column_are_caught(rows: list[int]):
    chosen = delta_bits(open_pair()[1])
    a, b = open_pair()
    with pytest.raises(ConsistencyCheckFailed):
        Exchange(a, b, [(4,)], alter=on_columns(int(np.flatnonzero(chosen)[3]), rows, 4))


def steal(step: str, message: bytes) -> bytes:
    """The attack: in element k's lowest row, column k alone carries the other choice."""
    for k in range(128) if step == "columns" else ():
        message = flip(message, k, [64 * k], 128)
    return message


def read_delta(done: Exchange) -> np.ndarray:
    """A product whose sum becomes known is wrong exactly when Delta has the bit."""
    return np.array([error != 0 for error in errors(done.halves_a[0], done.halves_b[0])], dtype=np.uint8)


def read_masks(a: OtReceiver, done: Exchange, delta: np.ndarray) -> np.ndarray:
    """With Delta, A computes both pads of every lowest row and so B's vector from B's messages."""
    packed_delta = np.packbits(delta, bitorder="little")
    rows = NUMBA.ring.transpose_bits(done.batch_a.columns)[: 64 * done.batch_a.own.size]
    bits = np.unpackbits(done.batch_a.choices, bitorder="little")[: len(rows), None]
    q = rows ^ bits * packed_delta
    h0 = a._row_hash(q, done.batch_a.first_row)[::64]
    h1 = a._row_hash(q, done.batch_a.first_row, packed_delta.tobytes())[::64]
    body = np.frombuffer(done.sent["products"][8:], np.uint8).reshape(-1, 260)
    return np.ascontiguousarray(body[:, :8]).view("<u8")[:, 0] - h0 + h1


def test_without_the_check_the_attack_reads_delta_and_then_every_mask(monkeypatch: pytest.MonkeyPatch):
    a, b = open_pair()
    monkeypatch.setattr(check, "verify", lambda *_: None)
    delta = read_delta(Exchange(a, b, [(1,) * 128], "attack", alter=steal))
    np.testing.assert_array_equal(delta, delta_bits(b))
    later = Exchange(a, b, [(3,)], "honest again")
    np.testing.assert_array_equal(read_masks(a, later, delta), later.halves_b[0].vector)


def test_with_the_check_the_same_attack_ends_the_session():
    a, b = open_pair()
    with pytest.raises(ConsistencyCheckFailed):
        Exchange(a, b, [(1,) * 128], "attack", alter=steal)
    assert b.closed
    assert not b._delta.any()
    assert not b._keys.any()
    a2, _ = open_pair()
    _, columns = a2.extend([(1,)], seed("later"))
    with pytest.raises(ProtocolViolation, match="closed"):
        b.challenge(columns, [(1,)], seed("later"))


def test_without_delta_the_masks_stay_hidden():
    a, b = open_pair()
    done = Exchange(a, b, [(3,)])
    wrong = delta_bits(b)
    wrong[0] ^= 1
    assert (read_masks(a, done, wrong) != done.halves_b[0].vector).all()
    np.testing.assert_array_equal(read_masks(a, done, delta_bits(b)), done.halves_b[0].vector)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "alter", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: b""], ids=["short", "long", "empty"]
)
def test_wrong_lengths_are_refused_and_change_nothing(step: str, alter):
    a, b = open_pair()
    honest = Exchange(*open_pair(), LENGTHS)
    refused = []

    def once(name: str, message: bytes) -> bytes:
        if name == step and not refused:
            refused.append(name)
            take = {
                "columns": lambda m: b.challenge(m, LENGTHS, seed("x")),
                "challenge": lambda m: a.answer(a._batch, m),
                "answer": lambda m: b.respond(b._batch, m),
                "products": lambda m: a.finish(a._batch, m),
            }
            with pytest.raises(MalformedMessage, match="bytes, found"):
                take[name](alter(message))
        return message

    done = Exchange(a, b, LENGTHS, alter=once)
    assert refused == [step]
    assert done.sent == honest.sent


@pytest.mark.parametrize("step", STEPS)
def test_messages_of_another_batch_are_refused(step: str):
    a, b = open_pair()
    old = Exchange(a, b, LENGTHS).sent
    with pytest.raises(ProtocolViolation, match="belongs to batch 0, batch 1"):
        Exchange(a, b, LENGTHS, "next", alter=lambda name, message: old[name] if name == step else message)


def test_every_step_runs_once_and_in_order():
    a, b = open_pair()
    batch_a, columns = a.extend(LENGTHS, seed("1"))
    with pytest.raises(ProtocolViolation, match="extend came where 'answer'"):
        a.extend(LENGTHS, seed("2"))
    with pytest.raises(ProtocolViolation, match="finish"):
        a.finish(batch_a, b"")
    batch_b, challenge = b.challenge(columns, LENGTHS, seed("3"))
    with pytest.raises(ProtocolViolation, match="challenge"):
        b.challenge(columns, LENGTHS, seed("4"))
    answer = a.answer(batch_a, challenge)
    with pytest.raises(ProtocolViolation, match="answer"):
        a.answer(batch_a, challenge[:8] + bytes(16))
    halves, products = b.respond(batch_b, answer)
    with pytest.raises(ProtocolViolation, match="respond"):
        b.respond(batch_b, answer)
    assert errors(a.finish(batch_a, products)[0], halves[0]) == [0, 0, 0]
    with pytest.raises(ProtocolViolation, match="finish"):
        a.finish(batch_a, products)
    assert (repr(a), repr(b)) == ("OtReceiver(due='extend', batches=1)", "OtSender(due='challenge', batches=1)")


def test_a_handle_of_another_session_is_refused():
    a, b = open_pair()
    other_a, other_b = open_pair("other")
    batch, columns = a.extend(LENGTHS, seed("1"))
    other_batch, _ = other_a.extend(LENGTHS, seed("1"))
    _, challenge = b.challenge(columns, LENGTHS, seed("2"))
    with pytest.raises(ProtocolViolation):
        a.answer(other_batch, challenge)
    with pytest.raises(ProtocolViolation):
        other_b.respond(b._batch, bytes(session.ANSWER_MESSAGE_BYTES))
    assert isinstance(b._batch, SenderBatch)
    assert isinstance(batch, ReceiverBatch)


def test_sessions_do_not_mix():
    a, _ = open_pair()
    _, b = open_pair("other")
    with pytest.raises(ConsistencyCheckFailed):
        Exchange(a, b, LENGTHS)


def test_closing_overwrites_the_keys():
    a, b = open_pair()
    a.close()
    b.close()
    assert a.closed
    assert b.closed
    assert not a._keys0.any()
    assert not a._keys1.any()
    with pytest.raises(ProtocolViolation, match="closed"):
        a.extend(LENGTHS, seed("1"))


@pytest.mark.parametrize("lengths", [[], [()], [(0,)], [(3, 0)], [(1,), ()], [(-1,)]])
def test_batches_without_products_are_refused(lengths: list[tuple[int, ...]]):
    a, b = open_pair()
    with pytest.raises(ProtocolViolation, match="at least one"):
        a.extend(lengths, seed("1"))
    with pytest.raises(ProtocolViolation, match="at least one"):
        b.challenge(b"", lengths, seed("1"))


def test_randomness_of_the_wrong_length_is_refused():
    a, b = open_pair()
    with pytest.raises(ProtocolViolation, match="rand"):
        a.extend(LENGTHS, b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        b.challenge(b"", LENGTHS, b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        OtSender.open(SESSION, b"1")


def test_repr_hides_secrets_everywhere():
    opening, _ = OtSender.open(SESSION, seed("b"))
    assert repr(opening) == "OtSenderOpening()"
    done = Exchange(*open_pair(), [(2,)])
    assert repr(done.batch_a) == "ReceiverBatch(number=0, first_row=0)"
    assert repr(done.batch_b) == "SenderBatch(number=0, first_row=0)"
    assert repr(done.halves_a[0]) == "CorrelationHalf(lengths=(2,))"


def test_a_failed_check_says_nothing_secret_and_a_bug_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch):
    a, b = open_pair()

    def broken(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(check, "verify", broken)
    with pytest.raises(MemoryError):
        Exchange(a, b, [(1,)])
    assert not b.closed
