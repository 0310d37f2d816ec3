"""Base OTs, the key trees, and the check of columns."""

from __future__ import annotations

import nacl.bindings as sodium
import numpy as np
import pytest

from protocol.errors import ConsistencyCheckFailed, MalformedMessage, ProtocolViolation
from protocol.ot import base
from protocol.ot import base as tree
from protocol.ot import extension as check
from protocol.ot.base import IKNP, SOFTSPOKEN, Extension
from protocol.ot.extension import receiver_columns, sender_columns

# --- base -------------------------------------------------------------------------------------------------------------

SESSION = b"session-identifier-0001"
DELTA = bytes.fromhex("00ff5aa5c30f8001fedcba9876543210")
IDENTITY = b"\x01" + bytes(31)
ORDER_TWO = bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
ORDER_FOUR = bytes(32)
ORDER_EIGHT = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
NOT_ON_CURVE = b"\x02" + bytes(31)
NOT_CANONICAL = bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
FIELD = 2**255 - 19


def seed(n: int) -> bytes:
    return bytes([n]) * 32


def affine(point: bytes) -> tuple[int, int]:
    """Decode an Ed25519 point to coordinates (RFC 8032, 5.1.3)."""
    y = int.from_bytes(point, "little") & ((1 << 255) - 1)
    d = -121665 * pow(121666, -1, FIELD) % FIELD
    square = (y * y - 1) * pow(d * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    assert (x * x - square) % FIELD == 0
    return (FIELD - x if x & 1 != point[31] >> 7 else x), y


def with_torsion(point: bytes) -> bytes:
    """The point plus the one of order two, (0, -1): on the curve, but outside the prime-order subgroup."""
    x, y = affine(point)
    x, y = -x % FIELD, -y % FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


STATE, MESSAGE = base.receiver_message(SESSION, DELTA, seed(1))
FIRST, SECOND, REPLY = base.sender_reply(SESSION, MESSAGE, seed(2))


def test_receiver_gets_exactly_the_chosen_keys():
    keys0, keys1, chosen = FIRST, SECOND, base.receiver_finish(STATE, REPLY)
    bits = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
    assert 0 < bits.sum() < 128
    np.testing.assert_array_equal(chosen, np.where(bits[:, None], keys1, keys0))
    assert len({row.tobytes() for row in np.concatenate([keys0, keys1])}) == 256


def test_messages_have_the_documented_sizes_and_depend_on_the_randomness_alone():
    assert (len(MESSAGE), len(REPLY)) == (8192, 4096)
    assert base.receiver_message(SESSION, DELTA, seed(1)) == (STATE, MESSAGE)
    assert base.receiver_message(SESSION, DELTA, seed(3))[1] != MESSAGE


def test_the_session_id_enters_every_key():
    keys0, keys1, reply = base.sender_reply(SESSION + b"x", MESSAGE, seed(2))
    chosen = base.receiver_finish(STATE, reply)
    both = {row.tobytes() for row in np.concatenate([keys0, keys1])}
    assert not both & {row.tobytes() for row in chosen}


def test_pairs_can_not_be_swapped_or_moved():
    state, message = base.receiver_message(SESSION, bytes(16), seed(1))
    moved = message[64:128] + message[:64] + message[128:]
    keys0, keys1, reply = base.sender_reply(SESSION, moved, seed(2))
    chosen = base.receiver_finish(state, reply)
    both = {row.tobytes() for row in np.concatenate([keys0[:2], keys1[:2]])}
    assert not both & {row.tobytes() for row in chosen[:2]}
    np.testing.assert_array_equal(chosen[2:], keys0[2:])


def test_points_used_as_bad_examples_are_what_they_claim():
    good = MESSAGE[:32]
    assert with_torsion(with_torsion(good)) == good
    x, y = affine(with_torsion(good))
    d = -121665 * pow(121666, -1, FIELD)
    assert (y * y - x * x - 1 - d * x * x * y * y) % FIELD == 0


@pytest.mark.parametrize("bad", [IDENTITY, ORDER_TWO, ORDER_FOUR, ORDER_EIGHT, NOT_ON_CURVE, NOT_CANONICAL, "torsion"])
@pytest.mark.parametrize("place", [0, 77, 127])
def test_invalid_points_are_refused_on_both_sides(bad: bytes | str, place: int):
    at = slice(32 * place, 32 * place + 32)
    with pytest.raises(MalformedMessage, match=f"point {place} "):
        base.sender_reply(SESSION, MESSAGE[: at.start] + spoil(bad, MESSAGE[at]) + MESSAGE[at.stop :], seed(2))
    with pytest.raises(MalformedMessage, match=f"point {place} "):
        base.receiver_finish(STATE, REPLY[: at.start] + spoil(bad, REPLY[at]) + REPLY[at.stop :])


def spoil(bad: bytes | str, good: bytes) -> bytes:
    return bad if isinstance(bad, bytes) else with_torsion(good)


def test_points_that_cancel_against_their_hash_are_refused():
    other = MESSAGE[32:64]
    zero = sodium.crypto_core_ed25519_sub(other, other)
    cancelling = sodium.crypto_core_ed25519_sub(zero, base.hash_to_point(SESSION, 0, 0, other))
    with pytest.raises(MalformedMessage, match="cancel to the identity"):
        base.sender_reply(SESSION, cancelling + MESSAGE[32:], seed(2))


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 0), slice(32, None)])
def test_wrong_lengths_are_refused(cut: slice):
    for wrong in (MESSAGE[cut], MESSAGE + b"\0", MESSAGE + MESSAGE[:32]):
        with pytest.raises(MalformedMessage, match="8192 bytes"):
            base.sender_reply(SESSION, wrong, seed(2))
    with pytest.raises(MalformedMessage, match="4096 bytes"):
        base.receiver_finish(STATE, REPLY[cut])


def test_own_arguments_are_guarded():
    with pytest.raises(ProtocolViolation, match="session id"):
        base.receiver_message(b"short", DELTA, seed(1))
    with pytest.raises(ProtocolViolation, match="session id"):
        base.sender_reply(bytes(65), bytes(8192), seed(1))
    with pytest.raises(ProtocolViolation, match="delta"):
        base.receiver_message(SESSION, DELTA[:-1], seed(1))
    with pytest.raises(ProtocolViolation, match="rand"):
        base.receiver_message(SESSION, DELTA, seed(1)[:-1])
    with pytest.raises(ProtocolViolation, match="rand"):
        base.sender_reply(SESSION, bytes(8192), b"")


def test_repr_hides_secrets():
    text = repr(STATE)
    assert repr(DELTA) not in text
    assert not any(repr(scalar) in text for scalar in STATE.scalars)
    assert base.transcript_key(SESSION, MESSAGE, b"r") != base.transcript_key(SESSION, MESSAGE, b"s")


# --- check ------------------------------------------------------------------------------------------------------------

CHI = bytes(range(16))


def honest(seed: int = 5, length: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the receiver's columns t and the sender's q = t xor Delta_j x."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, 256, length, dtype=np.uint8)
    columns = rng.integers(0, 256, (128, length), dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
    return choices, columns, columns ^ bits[:, None] * choices


def test_an_honest_answer_passes_and_survives_the_wire():
    choices, columns, seen = honest()
    sent = check.check_answer(CHI, choices, columns).to_bytes()
    assert len(sent) == check.CHECK_ANSWER_BYTES == 2064
    check.verify_check(CHI, DELTA, seen, check.CheckAnswer.from_bytes(sent))


@pytest.mark.parametrize("place", [0, 15, 16, 1000, 2063])
def test_any_altered_byte_of_the_answer_fails(place: int):
    choices, columns, seen = honest()
    sent = bytearray(check.check_answer(CHI, choices, columns).to_bytes())
    sent[place] ^= 1
    with pytest.raises(ConsistencyCheckFailed):
        check.verify_check(CHI, DELTA, seen, check.CheckAnswer.from_bytes(bytes(sent)))


@pytest.mark.parametrize("length", [0, 2063, 2065])
def test_an_answer_of_wrong_length_is_refused(length: int):
    with pytest.raises(MalformedMessage, match="2064 bytes"):
        check.CheckAnswer.from_bytes(bytes(length))


def test_the_extra_rows_fill_a_block_of_the_polynomial():
    """The mask of x~ is uniform: among the last 192 bits a whole aligned 128-bit block, whatever the batch's size."""
    for elements in range(1, 10):
        start, end = 64 * elements, 64 * elements + check.EXTRA_ROWS
        first_block = -(-start // 128)
        assert 128 * (first_block + 1) <= end


def test_repr_hides_hashes():
    choices, columns, _ = honest()
    assert repr(check.check_answer(CHI, choices, columns)) == "CheckAnswer()"


# --- tree -------------------------------------------------------------------------------------------------------------

BITS = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
KEYS0, KEYS1 = np.random.default_rng(7).integers(0, 256, (2, 128, 32), dtype=np.uint8)
CHOSEN = np.where(BITS[:, None], KEYS1, KEYS0)
SIXTEEN = Extension(16)


def digit_values(extension: Extension) -> list[int]:
    return [int(BITS[columns] @ (1 << np.arange(BITS[columns].size))) for columns, _ in extension.places()]


def place(extension: Extension, digit: int, level: int, side: int) -> int:
    """The place in the message at which the sum of that level and side begins; levels count from 1, then the check."""
    before = sum(64 * bits for bits in extension.digit_bits[:digit] if bits > 1)
    return 1 + before + 64 * (level - 1) + 32 * side


def flipped(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 0x10]) + message[at + 1 :]


@pytest.mark.parametrize("digits", [128, 100, 64, 32, 21, 16])
def test_the_sender_gets_every_key_but_one_of_each_digit(digits: int):
    extension = Extension(digits)
    keys, message = tree.grow_trees(SESSION, extension, KEYS0, KEYS1)
    assert len(message) == tree.tree_message_bytes(extension)
    tree.require_tree_message(extension, message)
    seen = tree.puncture_trees(SESSION, extension, DELTA, CHOSEN, message)
    assert len({key.tobytes() for key in keys}) == extension.leaves
    for (_, leaf), value in zip(extension.places(), digit_values(extension), strict=True):
        assert not seen[leaf.start].any()
        for y in range(leaf.stop - leaf.start):
            same = bool((seen[leaf.start + (y ^ value)] == keys[leaf.start + y]).all())
            assert same == (y != value)


def test_digits_of_one_bit_need_no_tree():
    keys, message = tree.grow_trees(SESSION, IKNP, KEYS0, KEYS1)
    assert message == bytes([128])
    np.testing.assert_array_equal(keys[0::2], KEYS1)
    np.testing.assert_array_equal(keys[1::2], KEYS0)


def test_session_and_digit_enter_every_key():
    keys, message = tree.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    other, _ = tree.grow_trees(SESSION + b"x", SIXTEEN, KEYS0, KEYS1)
    alike, _ = tree.grow_trees(SESSION, SIXTEEN, *(np.tile(k[:8], (16, 1)) for k in (KEYS0, KEYS1)))
    assert not {k.tobytes() for k in keys} & {k.tobytes() for k in other}
    assert len({k.tobytes() for k in alike}) == SIXTEEN.leaves
    with pytest.raises(ConsistencyCheckFailed):
        tree.puncture_trees(SESSION + b"x", SIXTEEN, DELTA, CHOSEN, message)


def test_the_stream_keys_are_no_nodes_and_no_check_values():
    """The bytes sent about a leaf tell nothing of its stream's key: neither sum nor digest holds one."""
    keys, message = tree.grow_trees(SESSION, SOFTSPOKEN, KEYS0, KEYS1)
    pieces = {message[at : at + 32] for at in range(1, len(message), 32)}
    assert not pieces & {key.tobytes() for key in keys}


@pytest.mark.parametrize("extension", [Extension(64), SOFTSPOKEN, SIXTEEN], ids=lambda e: str(e.digits))
@pytest.mark.parametrize("digit", [0, 3, -1])
def test_a_wrong_sum_is_caught_exactly_when_deltas_path_needs_it(extension: Extension, digit: int):
    """The bet a cheater can place: a bit of Delta a sum. If it passes, the sender's keys are those of the tree."""
    digit %= extension.digits
    _, message = tree.grow_trees(SESSION, extension, KEYS0, KEYS1)
    honest = tree.puncture_trees(SESSION, extension, DELTA, CHOSEN, message)
    for level in range(1, extension.digit_bits[digit]):
        bit = digit_values(extension)[digit] >> level & 1
        needed = place(extension, digit, level, 1 - bit)
        with pytest.raises(ConsistencyCheckFailed, match="trees"):
            tree.puncture_trees(SESSION, extension, DELTA, CHOSEN, flipped(message, needed))
        unread = flipped(message, place(extension, digit, level, bit))
        np.testing.assert_array_equal(tree.puncture_trees(SESSION, extension, DELTA, CHOSEN, unread), honest)


@pytest.mark.parametrize("digit", [0, 7, 20])
@pytest.mark.parametrize("part", [0, 1], ids=["sum of check values", "digest"])
def test_a_wrong_check_is_always_caught(digit: int, part: int):
    _, message = tree.grow_trees(SESSION, SOFTSPOKEN, KEYS0, KEYS1)
    at = place(SOFTSPOKEN, digit, SOFTSPOKEN.digit_bits[digit], part)
    with pytest.raises(ConsistencyCheckFailed):
        tree.puncture_trees(SESSION, SOFTSPOKEN, DELTA, CHOSEN, flipped(message, at))


def wrong_columns(message: bytes, delta: bytes) -> np.ndarray:
    """The columns for which q is not t xor Delta_j x, with A's keys honest and B's from ``message``."""
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None]
    keys, _ = tree.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    seen = tree.puncture_trees(SESSION, SIXTEEN, delta, np.where(bits, KEYS1, KEYS0), message)
    x, t, u = receiver_columns(SIXTEEN, keys, 40, 0)
    return (sender_columns(SIXTEEN, seen, delta, u, 0) != t ^ bits * x).any(axis=1)


def test_without_the_check_wrong_sums_open_sessions_whose_rows_tell_delta(monkeypatch: pytest.MonkeyPatch):
    """One wrong sum in every tree, on the side that a bit of 1 needs: rows break where Delta has that bit."""
    _, message = tree.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    for digit in range(16):
        message = flipped(message, place(SIXTEEN, digit, 4, 0))
    with pytest.raises(ConsistencyCheckFailed):
        wrong_columns(message, DELTA)
    monkeypatch.setattr("protocol.ot.base.hmac.compare_digest", lambda *_: True)
    read = wrong_columns(message, DELTA).reshape(16, 8).any(axis=1)
    np.testing.assert_array_equal(read, BITS.reshape(16, 8)[:, 4] == 1)
    assert 0 < read.sum() < 16


@pytest.mark.parametrize("length", [0, 1, 8192, 8194])
def test_messages_of_the_wrong_length_are_refused(length: int):
    with pytest.raises(MalformedMessage, match="8193 bytes, found"):
        tree.require_tree_message(SOFTSPOKEN, bytes([21]) * length)


def test_another_extension_is_named():
    with pytest.raises(MalformedMessage, match="22 digits, this server's 21"):
        tree.require_tree_message(SOFTSPOKEN, bytes([22]) * 8193)
