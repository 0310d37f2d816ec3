"""Trees that turn two keys of a base OT into all keys but one, a tree for every digit of Delta.

Why: with the 2^k keys of a digit, all known to the receiver A and all but one to the sender B, one column of U does
the work of k (``extension.py``).

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
from functools import reduce
from operator import xor
from typing import Final

import numpy as np

from protocol.errors import ConsistencyCheckFailed, MalformedMessage
from protocol.mpc.ot.base import KEY_BYTES, Keys, session_tag
from protocol.mpc.ot.digits import Extension

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
