"""Base OTs: B gets one key of each pair; every point is validated."""

from __future__ import annotations

import nacl.bindings as sodium
import numpy as np
import pytest

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.ot import base

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


def run(rand_b: bytes = seed(1), rand_a: bytes = seed(2)) -> tuple[base.Keys, base.Keys, base.Keys]:
    state, message = base.receiver_message(SESSION, DELTA, rand_b)
    keys0, keys1, reply = base.sender_reply(SESSION, message, rand_a)
    return keys0, keys1, base.receiver_finish(state, reply)


def test_receiver_gets_exactly_the_chosen_keys():
    keys0, keys1, chosen = run()
    bits = np.unpackbits(np.frombuffer(DELTA, np.uint8), bitorder="little")
    assert 0 < bits.sum() < 128
    np.testing.assert_array_equal(chosen, np.where(bits[:, None], keys1, keys0))
    assert len({row.tobytes() for row in np.concatenate([keys0, keys1])}) == 256


def test_messages_have_the_documented_sizes_and_depend_on_the_randomness_alone():
    state, message = base.receiver_message(SESSION, DELTA, seed(1))
    reply = base.sender_reply(SESSION, message, seed(2))[2]
    assert (len(message), len(reply)) == (8192, 4096)
    assert base.receiver_message(SESSION, DELTA, seed(1)) == (state, message)
    assert base.receiver_message(SESSION, DELTA, seed(3))[1] != message


def test_the_session_id_enters_every_key():
    state, message = base.receiver_message(SESSION, DELTA, seed(1))
    keys0, keys1, reply = base.sender_reply(SESSION + b"x", message, seed(2))
    chosen = base.receiver_finish(state, reply)
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
    good = base.receiver_message(SESSION, DELTA, seed(1))[1][:32]
    assert with_torsion(with_torsion(good)) == good
    x, y = affine(with_torsion(good))
    d = -121665 * pow(121666, -1, FIELD)
    assert (y * y - x * x - 1 - d * x * x * y * y) % FIELD == 0


@pytest.mark.parametrize("bad", [IDENTITY, ORDER_TWO, ORDER_FOUR, ORDER_EIGHT, NOT_ON_CURVE, NOT_CANONICAL, "torsion"])
@pytest.mark.parametrize("place", [0, 77, 127])
def test_invalid_points_are_refused_on_both_sides(bad: bytes | str, place: int):
    state, message = base.receiver_message(SESSION, DELTA, seed(1))
    reply = base.sender_reply(SESSION, message, seed(2))[2]
    at = slice(32 * place, 32 * place + 32)
    with pytest.raises(MalformedMessage, match=f"point {place} "):
        base.sender_reply(SESSION, message[: at.start] + spoil(bad, message[at]) + message[at.stop :], seed(2))
    with pytest.raises(MalformedMessage, match=f"point {place} "):
        base.receiver_finish(state, reply[: at.start] + spoil(bad, reply[at]) + reply[at.stop :])


def spoil(bad: bytes | str, good: bytes) -> bytes:
    return bad if isinstance(bad, bytes) else with_torsion(good)


def test_points_that_cancel_against_their_hash_are_refused():
    _, message = base.receiver_message(SESSION, DELTA, seed(1))
    other = message[32:64]
    zero = sodium.crypto_core_ed25519_sub(other, other)
    cancelling = sodium.crypto_core_ed25519_sub(zero, base.hash_to_point(SESSION, 0, 0, other))
    with pytest.raises(MalformedMessage, match="cancel to the identity"):
        base.sender_reply(SESSION, cancelling + message[32:], seed(2))


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 0), slice(32, None)])
def test_wrong_lengths_are_refused(cut: slice):
    state, message = base.receiver_message(SESSION, DELTA, seed(1))
    reply = base.sender_reply(SESSION, message, seed(2))[2]
    for short, long in ((message[cut], message + b"\0"), (message[cut], message + message[:32])):
        with pytest.raises(MalformedMessage, match="8192 bytes"):
            base.sender_reply(SESSION, short, seed(2))
        with pytest.raises(MalformedMessage, match="8192 bytes"):
            base.sender_reply(SESSION, long, seed(2))
    with pytest.raises(MalformedMessage, match="4096 bytes"):
        base.receiver_finish(state, reply[cut])


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
    state, message = base.receiver_message(SESSION, DELTA, seed(1))
    text = repr(state)
    assert repr(DELTA) not in text
    assert not any(repr(scalar) in text for scalar in state.scalars)
    assert base.transcript_key(SESSION, message, b"r") != base.transcript_key(SESSION, message, b"s")
