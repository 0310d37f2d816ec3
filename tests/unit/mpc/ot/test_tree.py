"""The key trees: all keys but one for the sender, and a receiver that sends sums of no tree is caught."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import ConsistencyCheckFailed, MalformedMessage
from protocol.ot import base
from protocol.ot.base import IKNP, SOFTSPOKEN, Extension
from protocol.ot.extension import receiver_columns, sender_columns
from protocol.ot.kernels import NUMPY

SESSION = b"session-identifier-0001"
DELTA = bytes.fromhex("00ff5aa5c30f8001fedcba9876543210")
BITS = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
KEYS0, KEYS1 = np.random.default_rng(7).integers(0, 256, (2, 128, 32), dtype=np.uint8)
CHOSEN = np.where(BITS[:, None], KEYS1, KEYS0)
SIXTEEN = Extension(16)


def digit_values(extension: Extension) -> list[int]:
    return [int(BITS[columns] @ (1 << np.arange(BITS[columns].size))) for columns, _ in extension.places()]


def place(extension: Extension, digit: int, level: int, side: int) -> int:
    """Where in the message the sum of that level and side begins; levels count from 1, after them the check."""
    before = sum(64 * bits for bits in extension.digit_bits[:digit] if bits > 1)
    return 1 + before + 64 * (level - 1) + 32 * side


def spoil(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 0x10]) + message[at + 1 :]


@pytest.mark.parametrize("digits", [128, 100, 64, 32, 21, 16])
def test_the_sender_gets_every_key_but_one_of_each_digit(digits: int):
    extension = Extension(digits)
    keys, message = base.grow_trees(SESSION, extension, KEYS0, KEYS1)
    assert len(message) == base.tree_message_bytes(extension)
    base.require_tree_message(extension, message)
    seen = base.puncture_trees(SESSION, extension, DELTA, CHOSEN, message)
    assert len({key.tobytes() for key in keys}) == extension.leaves
    for (_, leaf), value in zip(extension.places(), digit_values(extension), strict=True):
        assert not seen[leaf.start].any()
        for y in range(leaf.stop - leaf.start):
            same = bool((seen[leaf.start + (y ^ value)] == keys[leaf.start + y]).all())
            assert same == (y != value)


def test_digits_of_one_bit_need_no_tree():
    keys, message = base.grow_trees(SESSION, IKNP, KEYS0, KEYS1)
    assert message == bytes([128])
    np.testing.assert_array_equal(keys[0::2], KEYS1)
    np.testing.assert_array_equal(keys[1::2], KEYS0)


def test_session_and_digit_enter_every_key():
    keys, message = base.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    other, _ = base.grow_trees(SESSION + b"x", SIXTEEN, KEYS0, KEYS1)
    alike, _ = base.grow_trees(SESSION, SIXTEEN, *(np.tile(k[:8], (16, 1)) for k in (KEYS0, KEYS1)))
    assert not {k.tobytes() for k in keys} & {k.tobytes() for k in other}
    assert len({k.tobytes() for k in alike}) == SIXTEEN.leaves
    with pytest.raises(ConsistencyCheckFailed):
        base.puncture_trees(SESSION + b"x", SIXTEEN, DELTA, CHOSEN, message)


def test_the_stream_keys_are_no_nodes_and_no_check_values():
    """What is sent about a leaf tells nothing of its stream's key: neither sum nor digest holds one."""
    keys, message = base.grow_trees(SESSION, SOFTSPOKEN, KEYS0, KEYS1)
    pieces = {message[at : at + 32] for at in range(1, len(message), 32)}
    assert not pieces & {key.tobytes() for key in keys}


@pytest.mark.parametrize("extension", [Extension(64), SOFTSPOKEN, SIXTEEN], ids=lambda e: str(e.digits))
@pytest.mark.parametrize("digit", [0, 3, -1])
def test_a_wrong_sum_is_caught_exactly_when_deltas_path_needs_it(extension: Extension, digit: int):
    """The bet a cheater can place: a bit of Delta a sum. If it passes, the sender's keys are those of the tree."""
    digit %= extension.digits
    _, message = base.grow_trees(SESSION, extension, KEYS0, KEYS1)
    honest = base.puncture_trees(SESSION, extension, DELTA, CHOSEN, message)
    for level in range(1, extension.digit_bits[digit]):
        bit = digit_values(extension)[digit] >> level & 1
        needed = place(extension, digit, level, 1 - bit)
        with pytest.raises(ConsistencyCheckFailed, match="trees"):
            base.puncture_trees(SESSION, extension, DELTA, CHOSEN, spoil(message, needed))
        unread = spoil(message, place(extension, digit, level, bit))
        np.testing.assert_array_equal(base.puncture_trees(SESSION, extension, DELTA, CHOSEN, unread), honest)


@pytest.mark.parametrize("digit", [0, 7, 20])
@pytest.mark.parametrize("part", [0, 1], ids=["sum of check values", "digest"])
def test_a_wrong_check_is_always_caught(digit: int, part: int):
    _, message = base.grow_trees(SESSION, SOFTSPOKEN, KEYS0, KEYS1)
    at = place(SOFTSPOKEN, digit, SOFTSPOKEN.digit_bits[digit], part)
    with pytest.raises(ConsistencyCheckFailed):
        base.puncture_trees(SESSION, SOFTSPOKEN, DELTA, CHOSEN, spoil(message, at))


def wrong_columns(message: bytes, delta: bytes) -> np.ndarray:
    """For which columns q is not t xor Delta_j x, with A's keys honest and B's from ``message``."""
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None]
    keys, _ = base.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    seen = base.puncture_trees(SESSION, SIXTEEN, delta, np.where(bits, KEYS1, KEYS0), message)
    x, t, u = receiver_columns(SIXTEEN, keys, 40, 0, NUMPY)
    return (sender_columns(SIXTEEN, seen, delta, u, 0, NUMPY) != t ^ bits * x).any(axis=1)


def test_without_the_check_wrong_sums_open_sessions_whose_rows_tell_delta(monkeypatch: pytest.MonkeyPatch):
    """One wrong sum in every tree, on the side that a bit of 1 needs: rows break where Delta has that bit."""
    _, message = base.grow_trees(SESSION, SIXTEEN, KEYS0, KEYS1)
    for digit in range(16):
        message = spoil(message, place(SIXTEEN, digit, 4, 0))
    with pytest.raises(ConsistencyCheckFailed):
        wrong_columns(message, DELTA)
    monkeypatch.setattr("protocol.ot.base.hmac.compare_digest", lambda *_: True)
    read = wrong_columns(message, DELTA).reshape(16, 8).any(axis=1)
    np.testing.assert_array_equal(read, BITS.reshape(16, 8)[:, 4] == 1)
    assert 0 < read.sum() < 16


@pytest.mark.parametrize("length", [0, 1, 8192, 8194])
def test_messages_of_the_wrong_length_are_refused(length: int):
    with pytest.raises(MalformedMessage, match="8193 bytes, found"):
        base.require_tree_message(SOFTSPOKEN, bytes([21]) * length)


def test_another_extension_is_named():
    with pytest.raises(MalformedMessage, match="22 digits, this server's 21"):
        base.require_tree_message(SOFTSPOKEN, bytes([22]) * 8193)
