"""The 128 base OTs that open a session between the servers, on the prime-order group of Ed25519.

Why: the OT extension stretches 128 oblivious transfers of keys to millions. Roles are reversed here: B, the
extension's sender, receives with its choice bits Delta; A sends.

In OT i the receiver, with choice bit c, makes r_c and r_{1-c} so that it knows the discrete logarithm of
M_c = r_c + H_c(r_{1-c}) alone; the sender answers Y = y B and the keys are H(y M_0) and H(y M_1). It is an endemic OT:
a cheating party may steer keys it knows anyway, which the extension allows for.

Every point received must lie in the prime-order subgroup and not be the identity, so the cofactor plays no part; the
hash to the group is the sum of two Elligator maps, cofactor cleared. Session id and index go into every hash.

Reveals:  nothing of Delta to A, one of the two keys of each pair to B
Source:   Masny & Rindal 2019 (endemic oblivious transfer); docs/protocol.md 7
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import nacl.bindings as sodium
import numpy as np
from nacl.exceptions import RuntimeError as SodiumError
from numpy.typing import NDArray

from protocol.errors import MalformedMessage, ProtocolViolation

BASE_OTS: Final = 128
DELTA_BYTES: Final = BASE_OTS // 8
SEED_BYTES: Final = 32
POINT_BYTES: Final = 32
KEY_BYTES: Final = 32
SENDER_MESSAGE_BYTES: Final = POINT_BYTES * BASE_OTS
_SESSION_ID_BYTES: Final = range(16, 65)

Keys = NDArray[np.uint8]


@dataclass(frozen=True)
class BaseOtReceiver:
    """The state that B keeps between its message and A's reply; used once."""

    session_id: bytes
    delta: bytes = field(repr=False)
    scalars: tuple[bytes, ...] = field(repr=False)
    message: bytes = field(repr=False)


def receiver_message(session_id: bytes, delta: bytes, rand: bytes) -> tuple[BaseOtReceiver, bytes]:
    """Step 1, B: the pairs (r_0, r_1); bit j of ``delta`` is (delta[j // 8] >> (j % 8)) & 1.

    Shapes:   delta 16 bytes, rand 32 fresh bytes -> 8192 bytes
    """
    _require_session(session_id)
    require_bytes("delta", delta, DELTA_BYTES)
    require_bytes("rand", rand, SEED_BYTES)
    scalars, parts = [], []
    for i, choice in enumerate(_bits(delta)):
        scalar = _scalar(rand, b"known", i)
        other = sodium.crypto_scalarmult_ed25519_base_noclamp(_scalar(rand, b"unknown", i))
        mine = sodium.crypto_core_ed25519_sub(
            sodium.crypto_scalarmult_ed25519_base_noclamp(scalar), hash_to_point(session_id, i, choice, other)
        )
        scalars.append(scalar)
        parts += [other, mine] if choice else [mine, other]
    message = b"".join(parts)
    return BaseOtReceiver(session_id, delta, tuple(scalars), message), message


def sender_reply(session_id: bytes, message: bytes, rand: bytes) -> tuple[Keys, Keys, bytes]:
    """Step 2, A: both keys of every pair, and the points Y.

    Shapes:   message 8192 bytes, rand 32 fresh bytes -> uint8[128, 32], uint8[128, 32], 4096 bytes
    Raises:   MalformedMessage, on a wrong length or a point outside the prime-order subgroup
    """
    _require_session(session_id)
    require_bytes("rand", rand, SEED_BYTES)
    points = _points(message, 2 * BASE_OTS)
    keys: tuple[list[bytes], list[bytes]] = ([], [])
    reply = []
    for i in range(BASE_OTS):
        pair = (points[2 * i], points[2 * i + 1])
        scalar = _scalar(rand, b"reply", i)
        own = sodium.crypto_scalarmult_ed25519_base_noclamp(scalar)
        for branch in (0, 1):
            base = sodium.crypto_core_ed25519_add(pair[branch], hash_to_point(session_id, i, branch, pair[1 - branch]))
            keys[branch].append(_key(session_id, i, branch, b"".join(pair) + own, _multiply(scalar, base)))
        reply.append(own)
    return _as_rows(keys[0]), _as_rows(keys[1]), b"".join(reply)


def receiver_finish(state: BaseOtReceiver, reply: bytes) -> Keys:
    """Step 3, B: of pair i the key that bit i of Delta chose.

    Shapes:   reply 4096 bytes -> uint8[128, 32]
    Raises:   MalformedMessage, on a wrong length or a point outside the prime-order subgroup
    """
    keys = []
    for i, (choice, point) in enumerate(zip(_bits(state.delta), _points(reply, BASE_OTS), strict=True)):
        pair = state.message[2 * POINT_BYTES * i : 2 * POINT_BYTES * (i + 1)]
        shared = _multiply(state.scalars[i], point)
        keys.append(_key(state.session_id, i, choice, pair + point, shared))
    return _as_rows(keys)


def transcript_key(session_id: bytes, message: bytes, reply: bytes) -> bytes:
    """32 bytes that both servers derive from everything said so far; public."""
    digest = hashlib.sha256(b"moiety/2 ot transcript" + session_tag(session_id))
    digest.update(hashlib.sha256(message).digest() + hashlib.sha256(reply).digest())
    return digest.digest()


def session_tag(session_id: bytes) -> bytes:
    """32 bytes that stand for the session in every hash."""
    return hashlib.sha256(b"moiety/2 ot session" + session_id).digest()


def require_bytes(name: str, value: bytes, length: int) -> None:
    """Guard an argument of our own side.

    Raises:   ProtocolViolation
    """
    if len(value) != length:
        raise ProtocolViolation(f"{name} takes exactly {length} bytes, found {len(value)}")


def _require_session(session_id: bytes) -> None:
    if len(session_id) not in _SESSION_ID_BYTES:
        raise ProtocolViolation(f"a session id has 16 to 64 bytes, found {len(session_id)}; draw a fresh one")


def _bits(packed: bytes) -> Iterator[int]:
    return ((packed[j // 8] >> (j % 8)) & 1 for j in range(8 * len(packed)))


def _scalar(rand: bytes, label: bytes, i: int) -> bytes:
    wide = hmac.digest(rand, b"moiety/2 base ot scalar " + label + i.to_bytes(2, "big"), "sha512")
    scalar: bytes = sodium.crypto_core_ed25519_scalar_reduce(wide)
    return scalar


def hash_to_point(session_id: bytes, i: int, branch: int, point: bytes) -> bytes:
    """A point whose logarithm nobody knows, bound to session, place, branch and the other branch's point."""
    place = i.to_bytes(2, "big") + bytes([branch])
    wide = hashlib.sha512(b"moiety/2 base ot point" + session_tag(session_id) + place + point).digest()
    hashed: bytes = sodium.crypto_core_ed25519_add(
        sodium.crypto_core_ed25519_from_uniform(wide[:32]), sodium.crypto_core_ed25519_from_uniform(wide[32:])
    )
    return hashed


def _key(session_id: bytes, i: int, branch: int, transcript: bytes, shared: bytes) -> bytes:
    place = i.to_bytes(2, "big") + bytes([branch])
    return hashlib.sha256(b"moiety/2 base ot key" + session_tag(session_id) + place + transcript + shared).digest()


def _multiply(scalar: bytes, point: bytes) -> bytes:
    try:
        product: bytes = sodium.crypto_scalarmult_ed25519_noclamp(scalar, point)
    except SodiumError as error:
        raise MalformedMessage(
            "a base OT's points cancel to the identity: the peer built them against the protocol; open a new session"
        ) from error
    return product


def _points(message: bytes, count: int) -> list[bytes]:
    if len(message) != count * POINT_BYTES:
        raise MalformedMessage(
            f"a base OT message has {count * POINT_BYTES} bytes, found {len(message)}; check the peer's version"
        )
    points = [message[at : at + POINT_BYTES] for at in range(0, len(message), POINT_BYTES)]
    for i, point in enumerate(points):
        if not sodium.crypto_core_ed25519_is_valid_point(point):
            raise MalformedMessage(
                f"point {i} of a base OT message is not in the prime-order subgroup; only canonical points other than "
                "the identity are allowed; open a new session"
            )
    return points


def _as_rows(keys: list[bytes]) -> Keys:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(BASE_OTS, KEY_BYTES).copy()
