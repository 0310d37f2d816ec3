"""The 128 base OTs that open a session between the servers, and the trees that grow from their keys.

The base OTs are on the prime-order group of Ed25519. Why: the OT extension stretches 128 oblivious transfers of keys to
millions. Roles are reversed here: B, the extension's sender, receives with its choice bits Delta; A sends.

In OT i the receiver, with choice bit c, makes r_c and r_{1-c} so that it knows the discrete logarithm of
M_c = r_c + H_c(r_{1-c}) alone; the sender answers Y = y B and the keys are H(y M_0) and H(y M_1). It is an endemic OT:
a cheating party may steer keys it knows anyway, which the extension allows for.

Every point received must lie in the prime-order subgroup and not be the identity, so the cofactor plays no part; the
hash to the group is the sum of two Elligator maps, cofactor cleared. Session id and index go into every hash.

Reveals:  nothing of Delta to A, one of the two keys of each pair to B
Source:   Masny & Rindal 2019 (endemic oblivious transfer); docs/protocol.md 7

An extension splits Delta's 128 bits into digits. Every digit of k bits has a tree of 2^k keys, of which the sender
lacks one (see below). One column of U serves a whole digit, so fewer digits mean less traffic (one bit per row and
digit, the first digit free) and more work (2^k streams a digit). 128 digits of one bit are the extension of Ishai et
al. 2003, without trees.

    extension     digits   bytes of U per element   streams per column
    IKNP             128                    1016                256
    SOFTSPOKEN        21                     160               1472

Source:   Roy 2022 (SoftSpokenOT, section 3); docs/protocol.md 7, docs/adr/0006

A tree for every digit of Delta turns two keys of a base OT into all keys but one. Why: with the 2^k keys of a digit,
all known to the receiver A and all but one to the sender B, one column of U does the work of k (``extension.py``).

For a digit of k bits A grows a binary tree: the two nodes of the first level are the first base OT's keys, a node's
two children are hashes of it, and bit i of a leaf's number says which way level i went. Of every further level A
sends the sum of all nodes that went left and the sum of all that went right, each under the key of that level's base
OT which B has when its own path, the bits of Delta, goes the other way. So B gets the sibling of its path at every
level and with it every leaf but number Delta's digit.

A malicious A can send sums of no tree. Then what B computes depends on Delta, and whether B goes on would tell. So
every leaf hashes to a key for the streams and to a check value; A sends the sum of the check values (from which B has
the one it lacks) and a digest of them all, and B demands that digest. Hashes of 32 bytes do not collide, so the digest
fixes all check values, these fix the leaves, and every Delta with which B goes on sees the same keys.

Guarantees: by wrong sums A bets on a set of values for a digit. It wins with the probability that the digit is in the
            set and then knows just that; if it loses the session never opens, and Delta is gone.
Hides:      Delta from A; from B, the stream key of one leaf a digit
Source:     Goldreich, Goldwasser & Micali 1986; Roy 2022 (SoftSpokenOT, section 5), after Boyle et al. 2019;
            docs/protocol.md 7
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import Final

import nacl.bindings as sodium
import numpy as np
from nacl.exceptions import RuntimeError as SodiumError
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, ConsistencyCheckFailed, MalformedMessage, ProtocolViolation

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
    return _as_keys(keys[0]), _as_keys(keys[1]), b"".join(reply)


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
    return _as_keys(keys)


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


MAX_DIGIT_BITS: Final = 8


@dataclass(frozen=True)
class Extension:
    """A number of digits, as equal in length as they can be; the longer ones come first.

    Raises:   ConfigurationError, for a number of digits that 128 bits cannot take or whose trees grow too large
    """

    digits: int

    def __post_init__(self) -> None:
        fewest = BASE_OTS // MAX_DIGIT_BITS
        if not fewest <= self.digits <= BASE_OTS:
            raise ConfigurationError(
                f"an OT extension reads Delta as {fewest} to {BASE_OTS} digits, found {self.digits}; "
                f"{BASE_OTS} is IKNP, fewer digits trade work for traffic"
            )

    @property
    def digit_bits(self) -> tuple[int, ...]:
        """The bits of each digit; 128 in all."""
        short, longer = divmod(BASE_OTS, self.digits)
        return (short + 1,) * longer + (short,) * (self.digits - longer)

    @property
    def leaves(self) -> int:
        """Keys of all digits together."""
        return sum(1 << bits for bits in self.digit_bits)

    def places(self) -> list[tuple[slice, slice]]:
        """The columns and keys of every digit."""
        found, column, leaf = [], 0, 0
        for bits in self.digit_bits:
            found.append((slice(column, column + bits), slice(leaf, leaf + (1 << bits))))
            column, leaf = column + bits, leaf + (1 << bits)
        return found


IKNP: Final = Extension(BASE_OTS)
SOFTSPOKEN: Final = Extension(21)
DEFAULT_EXTENSION: Final = SOFTSPOKEN
"""At most 0.9 MB per contributor, what is sent online included (docs/adr/0006)."""


_HEADER_BYTES: Final = 1


class _Hash:
    """SHA-256 with session, digit and purpose in front."""

    def __init__(self, session_id: bytes, digit: int) -> None:
        self._start = hashlib.sha256(b"moiety/2 ot tree" + session_tag(session_id) + digit.to_bytes(2, "big"))

    def __call__(self, purpose: bytes, value: bytes) -> bytes:
        digest = self._start.copy()
        digest.update(purpose + value)
        return digest.digest()

    def child(self, node: bytes, level: int, side: int) -> bytes:
        return self(b"node" + bytes([level, side]), node)


def tree_message_bytes(extension: Extension) -> int:
    """Size of A's message: two sums a level below the first, then the check's sum and digest."""
    return _HEADER_BYTES + sum(_digit_bytes(bits) for bits in extension.digit_bits)


def grow_trees(session_id: bytes, extension: Extension, keys0: Keys, keys1: Keys) -> tuple[Keys, bytes]:
    """A's part: all keys, digit after digit, and what B needs to get all but one of each.

    Shapes:   keys0, keys1 uint8[128, 32] -> uint8[leaves, 32], ``message_bytes`` bytes
    """
    found, message = [], [bytes([extension.digits])]
    for digit, (columns, _) in enumerate(extension.places()):
        pairs = list(zip(_rows(keys0[columns]), _rows(keys1[columns]), strict=True))
        leaves, sums = _grow_digit(_Hash(session_id, digit), pairs)
        found += leaves
        message.append(sums)
    return _as_keys(found), b"".join(message)


def puncture_trees(session_id: bytes, extension: Extension, delta: bytes, keys: Keys, message: bytes) -> Keys:
    """B's part: all keys but one a digit, key y of a digit in row y xor Delta's digit; row 0 of each is zero.

    Shapes:   delta 16 bytes, keys uint8[128, 32] -> uint8[leaves, 32]
    Requires: the message passed :func:`require_message`
    Raises:   ConsistencyCheckFailed, when a tree is none
    """
    bits = np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little").tolist()
    found, claimed, seen, at = [], [], [], _HEADER_BYTES
    for digit, (columns, _) in enumerate(extension.places()):
        size = _digit_bytes(columns.stop - columns.start)
        sums = [message[i : i + KEY_BYTES] for i in range(at, at + size, KEY_BYTES)]
        at += size
        hashed = _Hash(session_id, digit)
        leaves, path = _puncture_digit(hashed, _rows(keys[columns]), bits[columns], sums)
        if sums:
            seen.append(_digest_of_others(hashed, leaves, path, sums[-2]))
            claimed.append(sums[-1])
            leaves = [hashed(b"stream", leaf) for leaf in leaves]
        leaves[path] = bytes(KEY_BYTES)
        found += [leaves[row ^ path] for row in range(len(leaves))]
    if not hmac.compare_digest(b"".join(seen), b"".join(claimed)):
        raise ConsistencyCheckFailed(
            "the peer's key trees are inconsistent: it deviated, or its message was altered; no session was opened; "
            "tell both operators before trying again"
        )
    return _as_keys(found)


def require_tree_message(extension: Extension, message: bytes) -> None:
    """Raises:   MalformedMessage, on a wrong length or another extension"""
    if len(message) != tree_message_bytes(extension):
        raise MalformedMessage(
            f"the key trees of an extension with {extension.digits} digits take {tree_message_bytes(extension)} bytes, "
            f"found {len(message)}; check that both servers use the same extension"
        )
    if message[0] != extension.digits:
        raise MalformedMessage(
            f"the peer's extension has {message[0]} digits, this server's {extension.digits}; configure both alike"
        )


def _grow_digit(hashed: _Hash, pairs: list[tuple[bytes, bytes]]) -> tuple[list[bytes], bytes]:
    nodes, sums = [pairs[0][1], pairs[0][0]], []
    for level, (key0, key1) in enumerate(pairs[1:], start=1):
        sides = [[hashed.child(node, level, side) for node in nodes] for side in (0, 1)]
        sums += [_sum([*sides[0], key1]), _sum([*sides[1], key0])]
        nodes = sides[0] + sides[1]
    if len(pairs) == 1:
        return nodes, b""
    checks = [hashed(b"check", node) for node in nodes]
    sums += [_sum(checks), hashed(b"digest", b"".join(checks))]
    return [hashed(b"stream", node) for node in nodes], b"".join(sums)


def _puncture_digit(hashed: _Hash, keys: list[bytes], choices: list[int], sums: list[bytes]) -> tuple[list[bytes], int]:
    """The leaves, with zeros in the place that is returned beside them."""
    path = choices[0]
    nodes = [keys[0], bytes(KEY_BYTES)] if path else [bytes(KEY_BYTES), keys[0]]
    for level, (key, choice) in enumerate(zip(keys[1:], choices[1:], strict=True), start=1):
        sides = [[hashed.child(node, level, side) for node in nodes] for side in (0, 1)]
        for side in (0, 1):
            sides[side][path] = bytes(KEY_BYTES)
        other = 1 - choice
        sides[other][path] = _sum([*sides[other], key, sums[2 * (level - 1) + other]])
        nodes = sides[0] + sides[1]
        path += choice << level
    return nodes, path


def _digest_of_others(hashed: _Hash, leaves: list[bytes], path: int, total: bytes) -> bytes:
    checks = [hashed(b"check", leaf) for leaf in leaves]
    checks[path] = bytes(KEY_BYTES)
    checks[path] = _sum([*checks, total])
    return hashed(b"digest", b"".join(checks))


def _digit_bytes(bits: int) -> int:
    return 2 * KEY_BYTES * bits if bits > 1 else 0


def _sum(values: list[bytes]) -> bytes:
    return reduce(xor, (int.from_bytes(value, "little") for value in values)).to_bytes(KEY_BYTES, "little")


def _rows(keys: Keys) -> list[bytes]:
    return [row.tobytes() for row in keys]


def _as_keys(rows: list[bytes]) -> Keys:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, KEY_BYTES).copy()
