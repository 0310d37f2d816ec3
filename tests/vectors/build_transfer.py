"""Vectors of docs/protocol.md 7: the OT extension."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.reference import field, ring
from tests.vectors.material import EDGES, hexes, seed, words


def transfers() -> dict[str, Any]:
    block = [seed(f"block {i}")[:16] for i in range(4)] + [bytes(16), field.ONE, b"\xff" * 16]
    multiplications = [
        {"left": x.hex(), "right": y.hex(), "product": field.multiply(x, y).hex()} for x in block[::2] for y in block
    ]
    chi, delta, key = seed("chi")[:16], seed("delta")[:16], seed("transcript")
    columns = [(seed(f"column {i}") * 2)[:count] for i, count in enumerate((8, 16, 24, 40, 64))]
    gilboa = []
    for i, (a, b) in enumerate([*zip(EDGES, reversed(EDGES), strict=True), (2**64 - 1, 2**64 - 1), (3, 2**63)]):
        zero, one = words(f"zero pads {i}", 64), words(f"one pads {i}", 64)
        sender, packed = field.gilboa_send(zero, one, b)
        chosen = [one[t] if (a >> t) & 1 else zero[t] for t in range(64)]
        receiver = field.gilboa_receive(chosen, packed, a)
        if (receiver + sender - a * b) % ring.MODULUS:
            raise AssertionError("Gilboa's product is wrong")
        gilboa.append(
            {
                "a": f"{a:016x}",
                "b": f"{b:016x}",
                "zero_seed": seed(f"zero pads {i}").hex(),
                "one_seed": seed(f"one pads {i}").hex(),
                "packed": packed.hex(),
                "sender": f"{sender:016x}",
                "receiver": f"{receiver:016x}",
            }
        )
    rows = [seed(f"row {i}")[:16] for i in range(5)]
    return {
        "multiply": multiplications,
        "chi": chi.hex(),
        "hash": [{"column": c.hex(), "hash": field.polynomial_hash(chi, c).hex()} for c in columns],
        "delta": delta.hex(),
        "checks": _checks(chi, delta),
        "row_hash": {
            "key": key.hex(),
            "first_index": 2**40 + 3,
            "rows": [row.hex() for row in rows],
            "hashes": hexes([field.row_hash(key[:16], row, 2**40 + 3 + i) for i, row in enumerate(rows)]),
        },
        "gilboa": gilboa,
    }


def _checks(chi: bytes, delta: bytes) -> list[dict[str, Any]]:
    """An extension of 256 rows: the honest one, and receivers whose columns disagree about the choice bits.

    A wrong column j shows only where Delta_j is set, so the cheats aim at columns where it is.
    """
    joined, choices = extension()
    t_columns = [joined[32 * j : 32 * (j + 1)] for j in range(128)]
    set_columns = [j for j in range(128) if field.bit(delta, j)]
    cheats: list[tuple[str, dict[int, bytes]]] = [
        ("honest", {}),
        ("one bit of one column", {set_columns[0]: (1).to_bytes(32, "little")}),
        ("another choice in a whole column", {set_columns[1]: seed("another choice")}),
        ("the same error in two columns", {j: seed("same error") for j in set_columns[2:4]}),
        ("the last, discarded row", {set_columns[5]: (2**255).to_bytes(32, "little")}),
        ("every column a different x", {j: seed(f"error {j}") for j in range(128)}),
    ]
    out = []
    for name, errors in cheats:
        q_columns = field.sender_columns(t_columns, choices, delta)
        for j, error in errors.items():
            if field.bit(delta, j):
                q_columns[j] = field.xor(q_columns[j], error)
        q_hashes, t_hashes = ([field.polynomial_hash(chi, c) for c in side] for side in (q_columns, t_columns))
        x_hash = field.polynomial_hash(chi, choices)
        if field.check_holds(q_hashes, t_hashes, x_hash, delta) is not (not errors):
            raise AssertionError(f"the check gives the wrong verdict on: {name}")
        out.append(
            {
                "name": name,
                "errors": {str(j): error.hex() for j, error in errors.items()},
                "x_hash": x_hash.hex(),
                "t_hashes_sha256": hashlib.sha256(b"".join(t_hashes)).hexdigest(),
                "q_hashes_sha256": hashlib.sha256(b"".join(q_hashes)).hexdigest(),
                "q_columns_sha256": hashlib.sha256(b"".join(q_columns)).hexdigest(),
                "holds": not errors,
            }
        )
    return out


def extension() -> tuple[bytes, bytes]:
    """The honest receiver of 256 rows: its 128 columns one after the other, and its choice bits."""
    return b"".join(seed(f"t column {j}") for j in range(128)), seed("choices")
