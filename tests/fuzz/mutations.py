"""Inputs near valid ones: bytes altered, cut, doubled and mixed; JSON with other values, names and depths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

Json = Any
NUMBERS: Final = (0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0, 5e-324)
TEXTS: Final = (
    "",
    "\x00",
    "a" * 300,
    "ab" * 32,
    "é\U0001f600",
    "\ud800",
    "../../etc/passwd",
    "%00",
    "1e999",
    "NaN",
    "-1",
)
_STRANGE: Final[tuple[Json, ...]] = (None, True, False, [], {}, [[]], {"": None}, *NUMBERS, *TEXTS)
_RAW: Final = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"[" * 2000,
    b'{"a":' * 2000,
    b"\xff\xfe",
    b'"\\ud800"',
    b"{}",
)
_BITS: Final = 8
_MOST_EDITS: Final = 4
_NASTY_BYTES: Final = (0x00, 0x7F, 0x80, 0xFF, 0x22, 0x5C, 0x0A, 0x0D, 0x7B, 0x2D)


def mutated(valid: Sequence[bytes], random: Random) -> bytes:
    """One of the valid inputs, altered in one to four places, or two of them mixed."""
    found = bytearray(random.choice(valid))
    for _ in range(random.randint(1, _MOST_EDITS)):
        _EDITS[random.randrange(len(_EDITS))](found, random, valid)
    return bytes(found)


def mutated_json(valid: Sequence[bytes], random: Random) -> bytes:
    """Mostly still JSON: a value, a name or a part is another one, gone, doubled or deep."""
    choice = random.random()
    if choice < 0.3:
        return mutated(valid, random)
    tree = json.loads(random.choice(valid))
    places = _places(tree)
    for _ in range(random.randint(1, 2)):
        _alter(places, random)
    text = json.dumps(tree, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if choice > 0.97:
        return text.replace(b"null", random.choice(_RAW), 1) if b"null" in text else text + random.choice(_RAW)
    return text


def _places(tree: Json) -> list[tuple[Any, Any]]:
    """Every container with one of its keys or indices."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            keys: list[Any] = list(one)
        elif isinstance(one, list):
            keys = list(range(len(one)))
        else:
            continue
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found


def _alter(places: list[tuple[Any, Any]], random: Random) -> None:
    if not places:
        return
    container, key = random.choice(places)
    if isinstance(container, list) and key >= len(container):
        return
    if isinstance(container, dict) and key not in container:
        return
    what = random.randrange(7)
    if what == 0:
        del container[key]
    elif what == 1:
        other, at = random.choice(places)
        if at in other if isinstance(other, dict) else at < len(other):
            container[key] = json.loads(json.dumps(other[at]))
    elif what == 2 and isinstance(container, dict):
        container[random.choice(TEXTS)] = container.pop(key)
    elif what == 3 and isinstance(container, list):
        container += container[: 1 + key] * random.randint(1, 3)
    elif what == 4:
        container[key] = [container[key]]
    elif what == 5 and isinstance(container[key], int):
        container[key] = random.choice((container[key] + 1, -container[key], container[key] - 1, container[key] * 2))
    else:
        container[key] = random.choice(_STRANGE)


def _flip(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    if found:
        found[random.randrange(len(found))] ^= 1 << random.randrange(_BITS)


def _nasty(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    if found:
        found[random.randrange(len(found))] = random.choice(_NASTY_BYTES)


def _cut(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    if found:
        start = random.randrange(len(found))
        del found[start : start + random.choice((1, 2, 8, len(found)))]


def _grow(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    start = random.randint(0, len(found))
    found[start:start] = random.randbytes(random.choice((1, 4, 16, 200)))


def _number(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    """A length field, at any place and of any width, of a value that is likely to be wrong."""
    width = random.choice((1, 2, 4, 8))
    if len(found) >= width:
        start = random.randrange(len(found) - width + 1)
        value = random.choice((0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)) % 256**width
        found[start : start + width] = value.to_bytes(width, random.choice(("big", "little")))


def _mix(found: bytearray, random: Random, valid: Sequence[bytes]) -> None:
    other = random.choice(valid)
    if other and found:
        start = random.randrange(len(found))
        found[start:] = other[random.randrange(len(other)) :]


_EDITS: Final = (_flip, _flip, _nasty, _cut, _grow, _number, _mix)
