"""Vectors of docs/protocol.md 2, 3 and 5: streams, fixed point, sharing, sketch."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

from tests.reference import numbers, ring, sketch
from tests.vectors.material import EDGES, LOG2_E, SHORT, SKETCHED, K, digest, hexes, octets, reals, seed, words


def prg() -> dict[str, Any]:
    cases = [
        {
            "seed": seed(f"prg {usage}").hex(),
            "usage": usage,
            "start": start,
            "length": length,
            "elements": hexes(ring.expand(seed(f"prg {usage}"), usage, length, start)),
        }
        for usage in ring.USAGES
        for start, length in ((0, 0), (0, 5), (2, 3), (4096, 4), (2**33, 2))
    ]
    labels = ["", "projections", "round 1 site é"]
    derived = [
        {"seed": seed("derive").hex(), "label": label, "key": ring.derive(seed("derive"), label).hex()}
        for label in labels
    ]
    return {"expand": cases, "derive": derived, "bad_seeds": ["", "00" * 31, "00" * 33]}


def fixed_point() -> dict[str, Any]:
    plain = [*reals("fixed point", 20), 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0**-21, -(2.0**-22), 1e-30, -1e-30]
    cases = []
    for fraction_bits in (21, 18, 0, -2):
        # the clip norm is 2^(21-f); values go up to it
        values = [x * 2.0 ** (LOG2_E - fraction_bits) for x in plain]
        rounding = seed(f"rounding {fraction_bits}")
        for start in (0, 2, 4096):
            encoded = numbers.encode(values, fraction_bits, numbers.uniform_draws(rounding, len(values), start))
            cases.append(
                {
                    "fraction_bits": fraction_bits,
                    "values": values,
                    "seed": rounding.hex(),
                    "start": start,
                    "ring": hexes(encoded),
                    "decoded": numbers.decode(encoded, fraction_bits),
                }
            )
    edge = _at_the_draw()
    alphas = [0.0, 1 / 64, 3 / 64, 0.015625001, 0.3, 0.5, 0.984375, 0.99, 1.0, 1e-300]
    grid = [
        {"alpha": a, "grid": g, "numerator": numbers.nearest_grid_point(a, g)} for a in alphas for g in (1, 16, 32, 3)
    ]
    clipping = [
        {"values": [3.0, 4.0], "clip_norm": 8.0, "clipped": numbers.exceeds_norm([3.0, 4.0], 8.0)},
        {"values": [3.0, 4.0], "clip_norm": 4.0, "clipped": numbers.exceeds_norm([3.0, 4.0], 4.0)},
        {"values": [0.0, 8.0], "clip_norm": 8.0, "clipped": numbers.exceeds_norm([0.0, 8.0], 8.0)},
        {"values": [0.0, 0.0], "clip_norm": 1.0, "clipped": numbers.exceeds_norm([0.0, 0.0], 1.0)},
    ]
    return {
        "encode": [*cases, edge],
        "grid": grid,
        "clip": clipping,
        "bad_alphas": [-0.001, 1.001, -1.0, 2.0],
        "bad_values": ["nan", "inf", "-inf"],
    }


def _at_the_draw() -> dict[str, Any]:
    """Fractions equal to their draw (which round down) and one 53rd bit above it (which round up)."""
    rounding = seed("rounding at the draw")
    draws = numbers.uniform_draws(rounding, 20)
    above = [Fraction(i % 2, 2**53) for i in range(20)]
    values = [float((u + more) / 2**LOG2_E) for u, more in zip(draws, above, strict=True)]
    encoded = numbers.encode(values, LOG2_E, draws)
    if encoded != [i % 2 for i in range(20)]:
        raise AssertionError("the draw is not compared exactly")
    return {
        "fraction_bits": LOG2_E,
        "values": values,
        "seed": rounding.hex(),
        "start": 0,
        "ring": hexes(encoded),
        "decoded": numbers.decode(encoded, LOG2_E),
    }


def sharing() -> dict[str, Any]:
    cases = []
    for length in (1, 2, 3, 8, 17):
        x = (EDGES + words(f"sharing {length}", 32))[:length]
        key = seed(f"share {length}")
        vector = ring.split(x, key)
        if ring.reconstruct(key, vector) != x:
            raise AssertionError("the reference does not reconstruct")
        salt, content_key = seed(f"salt {length}"), seed(f"content key {length}")
        cases.append(
            {
                "x": hexes(x),
                "seed": key.hex(),
                "vector": hexes(vector),
                "salt": salt.hex(),
                "content_key": content_key.hex(),
                "commitment_of_seed": ring.commitment(salt, content_key, key).hex(),
                "commitment_of_vector": ring.commitment(salt, content_key, ring.to_bytes(vector)).hex(),
            }
        )
    return {"split": cases, "bad_commitments": _bad_commitments(cases), "digests": _digests()}


def _bad_commitments(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first, last = cases[0], cases[-1]
    salt, key, share = seed("salt 17"), seed("content key 17"), seed("share 17")
    honest = ring.commitment(salt, key, share)
    body_hash = hashlib.sha256(ring.encrypted(key, share)).digest()
    good = {"salt": last["salt"], "content_key": last["content_key"], "share": last["seed"], "commitment": honest.hex()}
    return [
        good | {"why": "one bit of the commitment", "commitment": (bytes([1 ^ honest[0]]) + honest[1:]).hex()},
        good | {"why": "salt of another share", "salt": first["salt"]},
        good | {"why": "content key of another share", "content_key": first["content_key"]},
        good | {"why": "another share", "share": first["seed"]},
        good | {"why": "bare hash of the body without salt and key", "commitment": body_hash.hex()},
        good | {"why": "the share in clear under the salt", "commitment": hashlib.sha256(salt + share).hexdigest()},
    ]


def _digests() -> list[dict[str, Any]]:
    """Sealed messages with made-up heads: a header of some length, then a key part of 1,200 bytes."""
    cases = []
    for header_bytes, body_bytes in ((1, 16), (300, 48), (1000, 100)):
        header, body = octets(f"header {header_bytes}", header_bytes), octets(f"body {body_bytes}", body_bytes)
        key_part = (1200).to_bytes(4, "big") + octets("key part", 1200)
        head = b"MOIETY\x00\x01" + header_bytes.to_bytes(4, "big") + header + key_part
        cases.append({"head": head.hex(), "body": body.hex(), "digest": ring.message_digest(head, body).hex()})
    return cases


def sketches() -> dict[str, Any]:
    cases = []
    for dimension, k in ((1, K), (SHORT, K), (K, K), (K + 1, K), (SKETCHED, K), (9001, 8192)):
        label = f"sketch {dimension}"
        x = words(label, dimension)
        out = sketch.sketch(seed("challenge"), x, k)
        cases.append(
            {
                "dimension": dimension,
                "sketch_length": k,
                "challenge": seed("challenge").hex(),
                "input_seed": seed(label).hex(),
                "length": len(out),
                "sha256": digest(out),
                "first": hexes(out[:4]),
            }
        )
    columns = sketch.entries(seed("challenge"), 6, K)
    return {
        "sketch": cases,
        "columns": {"challenge": seed("challenge").hex(), "sketch_length": K, "entries": columns},
    }
