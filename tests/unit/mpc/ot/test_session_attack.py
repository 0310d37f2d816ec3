"""The attack on a session that the consistency check stops, and what it reads where nothing is checked."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest

from protocol.arithmetic.kernels import transpose_bits
from protocol.arithmetic.ring import derive
from protocol.errors import ConsistencyCheckFailed, ProtocolViolation
from protocol.ot import extension as check
from protocol.ot import gilboa, session
from protocol.ot.base import Extension
from protocol.ot.session import OtReceiver, OtSender
from tests.unit.mpc.ot.exchange import EXTENSIONS, Exchange, open_pair, seed


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
    honest = check.check_answer(chi[8:], batch.choices, batch.columns)
    won = []
    for guess in range(1 << extension.digit_bits[digit]):
        fitted = honest.column_hashes.copy()
        guess_bits = guess >> np.arange(extension.digit_bits[digit]) & 1
        fitted[columns] ^= guess_bits.astype(np.uint8)[:, None] * hashed
        try:
            check.verify_check(
                chi[8:], b._delta.tobytes(), batch_b.columns, check.CheckAnswer(honest.choices_hash, fitted)
            )
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
            a._row_hash, columns, own, done.sent["products"][8:], first_row=done.batch_a.first_row
        )
        right = terms + done.halves_b[0].products == own * done.halves_b[0].vector
        found[right & (guess < 1 << np.array(extension.digit_bits))] = guess
    return found


def read_masks(a: OtReceiver, done: Exchange, delta: np.ndarray) -> np.ndarray:
    """With Delta, A computes both pads of every lowest row and so B's vector."""
    packed_delta = np.packbits(delta, bitorder="little")
    rows = transpose_bits(done.batch_a.columns)[: 64 * done.batch_a.own.size]
    bits = np.unpackbits(done.batch_a.choices, bitorder="little")[: len(rows), None]
    q = rows ^ bits * packed_delta
    h0 = a._row_hash(q, done.batch_a.first_row)[::64]
    return a._row_hash(q, done.batch_a.first_row, packed_delta.tobytes())[::64] - h0


@EXTENSIONS
def test_without_the_check_the_attack_reads_delta_and_then_every_mask(
    monkeypatch: pytest.MonkeyPatch, extension: Extension
):
    a, b = open_pair(extension=extension)
    monkeypatch.setattr(session, "verify_check", lambda *_: None)
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


def test_a_failed_check_says_nothing_secret_and_a_bug_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch):
    a, b = open_pair()

    def broken(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(session, "verify_check", broken)
    with pytest.raises(MemoryError):
        Exchange(a, b, [(1,)])
    assert not b.closed
