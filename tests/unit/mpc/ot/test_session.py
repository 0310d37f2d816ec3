"""A whole session: products, order, lengths, replay, and the attack that the consistency check stops."""

from __future__ import annotations

import hashlib
from typing import NoReturn

import numpy as np
import pytest

from protocol.arithmetic.prg import derive
from protocol.errors import ConsistencyCheckFailed, MalformedMessage, ProtocolViolation
from protocol.mpc.correlation import CorrelationHalf, open_ot_sessions
from protocol.mpc.ot import base, check, gilboa, session, tree
from protocol.mpc.ot.digits import DEFAULT, IKNP, SOFTSPOKEN, Extension
from protocol.mpc.ot.kernels import NUMBA, NUMPY, OtKernels
from protocol.mpc.ot.session import OtReceiver, OtSender, ReceiverBatch, SenderBatch

SESSION = b"session-identifier-0001"
LENGTHS = [(5, 1, 1), (3,), (1, 2)]
CONTRIBUTOR = (2048,) + (1,) * 40
EXTENSIONS = pytest.mark.parametrize("extension", [IKNP, SOFTSPOKEN], ids=["iknp", "softspoken"])
STEPS = ("columns", "challenge", "answer", "products")


def seed(label: str) -> bytes:
    return hashlib.sha256(label.encode()).digest()


def open_pair(
    label: str = "pair", kernels: OtKernels = NUMBA, extension: Extension = DEFAULT
) -> tuple[OtReceiver, OtSender]:
    return open_ot_sessions(SESSION, seed(label + "a"), seed(label + "b"), kernels, extension)


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


def flip(message: bytes, digit: int, rows: list[int], elements: int) -> bytes:
    """Other choice bits for one digit of Delta, in the given rows; x comes from digit 0, so there for all others."""
    body = np.frombuffer(message, np.uint8).copy()
    columns = body[session.BATCH_NUMBER_BYTES :].reshape(-1, 8 * elements + 24)
    for row in rows:
        columns[digit - 1 if digit else slice(None), row // 8] ^= 1 << (row % 8)
    return body.tobytes()


def delta_bits(b: OtSender) -> np.ndarray:
    return np.unpackbits(b._delta, bitorder="little")


def delta_digits(b: OtSender) -> np.ndarray:
    bits = delta_bits(b)
    return np.array([bits[columns] @ (1 << np.arange(bits[columns].size)) for columns, _ in b._extension.places()])


@EXTENSIONS
@pytest.mark.parametrize("kernels", [NUMBA, NUMPY], ids=["numba", "numpy"])
def test_every_product_is_exact_over_several_batches(kernels: OtKernels, extension: Extension):
    a, b = open_pair(kernels=kernels, extension=extension)
    vectors = set()
    for label in ("first", "second", "third"):
        done = Exchange(a, b, LENGTHS, label)
        assert [half.lengths for half in done.halves_a] == LENGTHS
        for one, other in zip(done.halves_a, done.halves_b, strict=True):
            assert errors(one, other) == [0] * len(one.lengths)
            vectors |= {one.vector.tobytes(), other.vector.tobytes()}
    assert len(vectors) == 3 * 2 * len(LENGTHS)


@EXTENSIONS
def test_the_twins_send_the_same_bytes(extension: Extension):
    sent = [Exchange(*open_pair(kernels=kernels, extension=extension), LENGTHS).sent for kernels in (NUMBA, NUMPY)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize(("extension", "cost"), [(IKNP, 2_652_744), (Extension(32), 1_046_856), (SOFTSPOKEN, 862_848)])
def test_what_a_contributor_costs(extension: Extension, cost: int):
    done = Exchange(*open_pair(extension=extension), [CONTRIBUTOR])
    assert errors(done.halves_a[0], done.halves_b[0]) == [0] * 41
    assert len(done.sent["columns"]) == session.extension_message_bytes(2088, extension)
    assert len(done.sent["products"]) == session.products_message_bytes(2088)
    assert sum(map(len, done.sent.values())) == cost


def test_the_default_costs_less_than_the_budget_with_what_is_sent_online():
    done = Exchange(*open_pair(), [CONTRIBUTOR])
    online = 2 * 8 * sum(CONTRIBUTOR)  # each server sends its masked vector once
    assert DEFAULT == SOFTSPOKEN
    assert sum(map(len, done.sent.values())) + online < 900_000


def test_streams_and_row_indices_are_never_reused():
    a, b = open_pair()
    same = [Exchange(a, b, [(2,)], "same"), Exchange(a, b, [(2,)], "same")]
    assert (same[0].halves_a[0].vector != same[1].halves_a[0].vector).all()
    assert (same[0].halves_b[0].vector != same[1].halves_b[0].vector).all()
    assert (same[0].batch_a.columns != same[1].batch_a.columns).any(axis=1).all()
    assert (same[0].batch_b.columns != same[1].batch_b.columns).any(axis=1).all()
    assert same[1].batch_a.first_row == same[1].batch_b.first_row == 64 * 2 + 192


def test_the_extra_choice_bits_belong_to_no_element():
    done = Exchange(*open_pair(), [(2,)])
    assert done.batch_a.choices.size == 8 * 2 + 24
    assert done.batch_a.choices[:16].tobytes() == done.halves_a[0].vector.astype("<u8").tobytes()
    assert len(set(done.batch_a.choices[16:].tolist())) > 1


def label_with_a_zero_digit(extension: Extension) -> str:
    """A pair of sessions whose Delta has a digit of zero and one that is not, past the first."""
    for number in range(1000):
        label = f"zero digit {number}"
        bits = np.unpackbits(np.frombuffer(derive(seed(label + "b"), "delta")[:16], np.uint8), bitorder="little")
        shown = [bits[columns].any() for columns, _ in extension.places()[1:]]
        if not all(shown) and any(shown):
            return label
    raise AssertionError("no label found")


@EXTENSIONS
def test_one_flipped_choice_bit_is_caught_when_delta_shows_it(extension: Extension):
    """Columns that differ are noticed if and only if Delta's digit is not zero: that is the bet a cheater can place."""
    label = label_with_a_zero_digit(extension)
    digits = delta_digits(open_pair(label, extension=extension)[1])
    shown, hidden = 1 + np.flatnonzero(digits[1:]), 1 + np.flatnonzero(digits[1:] == 0)
    for digit in (int(shown[0]), int(shown[-1])):
        a, b = open_pair(label, extension=extension)
        with pytest.raises(ConsistencyCheckFailed):
            Exchange(a, b, [(4,)], alter=on_columns(digit, [17], 4))
        assert b.closed
    a, b = open_pair(label, extension=extension)
    Exchange(a, b, [(4,)], alter=on_columns(int(hidden[0]), [17], 4))
    assert not b.closed


def on_columns(digit: int, rows: list[int], elements: int):
    return lambda step, message: flip(message, digit, rows, elements) if step == "columns" else message


@EXTENSIONS
@pytest.mark.parametrize("rows", [list(range(64)), list(range(4 * 64 + 192)), [4 * 64 + 191]])
def test_other_choice_bits_in_part_or_all_of_a_digit_are_caught(rows: list[int], extension: Extension):
    shown = np.flatnonzero(delta_digits(open_pair(extension=extension)[1]))
    for digit in {0, int(shown[3])} & set(shown.tolist()):
        a, b = open_pair(extension=extension)
        with pytest.raises(ConsistencyCheckFailed):
            Exchange(a, b, [(4,)], alter=on_columns(digit, rows, 4))


@EXTENSIONS
def test_a_bet_on_a_digit_passes_with_the_right_guess_alone(extension: Extension):
    """A cheater who fits its answer to a guess of the digit passes once in 2^k, and then knows those k bits."""
    a, b = open_pair(extension=extension)
    digit, (columns, _) = 5, extension.places()[5]
    batch, sent = a.extend([(4,)])
    batch_b, chi = b.challenge(flip(sent, digit, [17], 4), [(4,)], seed("b"))
    error = np.zeros((1, 8 * 4 + 24), np.uint8)
    error[0, 17 // 8] = 1 << (17 % 8)
    hashed = check.column_hashes(chi[8:], error)
    honest = check.answer(chi[8:], batch.choices, batch.columns)
    won = []
    for guess in range(1 << extension.digit_bits[digit]):
        fitted = honest.column_hashes.copy()
        guess_bits = guess >> np.arange(extension.digit_bits[digit]) & 1
        fitted[columns] ^= guess_bits.astype(np.uint8)[:, None] * hashed
        try:
            check.verify(chi[8:], b._delta.tobytes(), batch_b.columns, check.CheckAnswer(honest.choices_hash, fitted))
        except ConsistencyCheckFailed:
            continue
        won.append(guess)
    assert won == [delta_digits(b)[digit]]


def steal(extension: Extension):
    """The attack: in element d's lowest row, digit d alone carries the other choice."""

    def alter(step: str, message: bytes) -> bytes:
        for digit in range(extension.digits) if step == "columns" else ():
            message = flip(message, digit, [64 * digit], extension.digits)
        return message

    return alter


def read_delta(a: OtReceiver, done: Exchange, extension: Extension) -> np.ndarray:
    """Each row hides one digit of Delta: of the values it can have, one makes a product right whose sum is known."""
    found = np.full(extension.digits, -1)
    own = done.batch_a.own.copy()
    own[0] ^= np.uint64(1)  # for digit 0 all the others were turned round
    for guess in range(1 << extension.digit_bits[0]):
        columns = done.batch_a.columns.copy()
        for digit, (place, _) in enumerate(extension.places()):
            bits = guess >> np.arange(place.stop - place.start) & 1
            columns[place, 8 * digit] ^= bits.astype(np.uint8)
        terms = gilboa.receiver_terms(
            a._row_hash, columns, own, done.sent["products"][8:], first_row=done.batch_a.first_row, kernels=NUMBA
        )
        right = terms + done.halves_b[0].products == own * done.halves_b[0].vector
        found[right & (guess < 1 << np.array(extension.digit_bits))] = guess
    return found


def read_masks(a: OtReceiver, done: Exchange, delta: np.ndarray) -> np.ndarray:
    """With Delta, A computes both pads of every lowest row and so B's vector."""
    packed_delta = np.packbits(delta, bitorder="little")
    rows = NUMBA.ring.transpose_bits(done.batch_a.columns)[: 64 * done.batch_a.own.size]
    bits = np.unpackbits(done.batch_a.choices, bitorder="little")[: len(rows), None]
    q = rows ^ bits * packed_delta
    h0 = a._row_hash(q, done.batch_a.first_row)[::64]
    return a._row_hash(q, done.batch_a.first_row, packed_delta.tobytes())[::64] - h0


@EXTENSIONS
def test_without_the_check_the_attack_reads_delta_and_then_every_mask(
    monkeypatch: pytest.MonkeyPatch, extension: Extension
):
    a, b = open_pair(extension=extension)
    monkeypatch.setattr(check, "verify", lambda *_: None)
    done = Exchange(a, b, [(1,) * extension.digits], "attack", alter=steal(extension))
    digits = read_delta(a, done, extension)
    np.testing.assert_array_equal(digits, delta_digits(b))
    delta = np.concatenate([d >> np.arange(k) & 1 for d, k in zip(digits, extension.digit_bits, strict=True)])
    later = Exchange(a, b, [(3,)], "honest again")
    np.testing.assert_array_equal(read_masks(a, later, delta.astype(np.uint8)), later.halves_b[0].vector)


@EXTENSIONS
def test_with_the_check_the_same_attack_ends_the_session(extension: Extension):
    a, b = open_pair(extension=extension)
    with pytest.raises(ConsistencyCheckFailed):
        Exchange(a, b, [(1,) * extension.digits], "attack", alter=steal(extension))
    assert b.closed
    assert not b._delta.any()
    assert not b._keys.any()
    a2, _ = open_pair(extension=extension)
    _, columns = a2.extend([(1,)])
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
    batch_a, columns = a.extend(LENGTHS)
    with pytest.raises(ProtocolViolation, match="extend came where 'answer'"):
        a.extend(LENGTHS)
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
    batch, columns = a.extend(LENGTHS)
    other_batch, _ = other_a.extend(LENGTHS)
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
    assert not a._keys.any()
    assert not b._keys.any()
    with pytest.raises(ProtocolViolation, match="closed"):
        a.extend(LENGTHS)


@pytest.mark.parametrize("lengths", [[], [()], [(0,)], [(3, 0)], [(1,), ()], [(-1,)]])
def test_batches_without_products_are_refused(lengths: list[tuple[int, ...]]):
    a, b = open_pair()
    with pytest.raises(ProtocolViolation, match="at least one"):
        a.extend(lengths)
    with pytest.raises(ProtocolViolation, match="at least one"):
        b.challenge(b"", lengths, seed("1"))


def test_randomness_of_the_wrong_length_is_refused():
    _, b = open_pair()
    with pytest.raises(ProtocolViolation, match="rand"):
        OtReceiver.open(SESSION, OtSender.open(SESSION, seed("b"))[1], b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        b.challenge(b"", LENGTHS, b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        OtSender.open(SESSION, b"1")


def test_repr_hides_secrets_everywhere():
    opening, _ = OtSender.open(SESSION, seed("b"))
    assert repr(opening) == "OtSenderOpening(due='finish')"
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


def opening_and_reply(extension: Extension = SOFTSPOKEN) -> tuple[session.OtSenderOpening, bytes]:
    opening, message = OtSender.open(SESSION, seed("b"), extension=extension)
    return opening, OtReceiver.open(SESSION, message, seed("a"), extension=extension)[1]


@EXTENSIONS
def test_the_opening_has_the_documented_size(extension: Extension):
    _, reply = opening_and_reply(extension)
    assert len(reply) == session.opening_reply_bytes(extension)
    assert len(reply) == (4096 + 1 if extension == IKNP else 4096 + 1 + 64 * 128)


def test_inconsistent_trees_end_the_opening_for_good():
    opening, reply = opening_and_reply()
    with pytest.raises(ConsistencyCheckFailed, match="trees"):
        opening.finish(reply[:-1] + bytes([reply[-1] ^ 1]))
    assert repr(opening) == "OtSenderOpening(due='closed')"
    with pytest.raises(ProtocolViolation, match="has had its reply"):
        opening.finish(reply)


def test_an_opening_takes_one_reply():
    opening, reply = opening_and_reply()
    assert not opening.finish(reply).closed
    with pytest.raises(ProtocolViolation, match="has had its reply"):
        opening.finish(reply)


def test_a_malformed_reply_changes_nothing():
    opening, reply = opening_and_reply()
    for bad in (reply[:-1], reply + b"\0", reply[: base.SENDER_MESSAGE_BYTES], b"", bytes(32) + reply[32:]):
        with pytest.raises(MalformedMessage):
            opening.finish(bad)
    assert not opening.finish(reply).closed


def test_servers_with_different_extensions_say_so():
    opening, message = OtSender.open(SESSION, seed("b"), extension=Extension(22))
    with pytest.raises(MalformedMessage, match="has 21 digits, this server's 22"):
        opening.finish(OtReceiver.open(SESSION, message, seed("a"), extension=SOFTSPOKEN)[1])
    with pytest.raises(MalformedMessage, match="take 1 bytes"):
        tree.require_message(IKNP, bytes(2))
