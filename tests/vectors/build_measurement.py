"""Vectors of docs/protocol.md 6 to 8: range check, products, distances."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.reference import product, range_check, ring, sketch
from tests.vectors.material import EDGES, GRID, LOG2_E, SHORT, SKETCHED, K, digest, hexes, honest, seed, words


def _attacks(dimension: int) -> list[tuple[str, list[int], bool]]:
    """(name, vector, does it pass)."""
    e = 2**LOG2_E
    base = honest(f"honest {dimension}", dimension, e)
    out = [
        ("honest", base, True),
        ("zero", [0] * dimension, True),
        ("twice the norm", honest("2", dimension, 2 * e), True),
    ]
    for name, value in (
        ("2^63", 2**63),
        ("2^40", 2**40),
        ("2^32", 2**32),
        ("7 * 2^32", 7 * 2**32),
        ("-2^40", 2**64 - 2**40),
    ):
        for count in (1, 2, dimension):
            spoiled = [(x + value) % ring.MODULUS if i < count else x for i, x in enumerate(base)]
            out.append((f"{count} entries plus {name}", spoiled, False))
    for times in (30, 1000):
        out.append((f"{times} times too long", honest(f"{times}", dimension, times * e), False))
    return out


def range_checks() -> dict[str, Any]:
    cases = []
    for dimension in (SHORT, SKETCHED):
        identity = dimension <= K
        h, length = range_check.range_bits(LOG2_E, identity), min(dimension, K)
        challenge = seed(f"range challenge {dimension}")
        rows = range_check.projections(challenge, length)
        for name, x, good in _attacks(dimension):
            key = seed(f"range share {dimension} {name}")
            a = sketch.sketch(challenge, ring.expand(key, "SHARE", dimension), K)
            b = sketch.sketch(challenge, ring.split(x, key), K)
            u, v = range_check.operand_a(a, rows, h), range_check.operand_b(b, rows, h)
            products_a = words(f"range products {dimension} {name}", 40)
            products_b = [(p * q - r) % ring.MODULUS for p, q, r in zip(u, v, products_a, strict=True)]
            share_a = range_check.share_a(u, products_a, h)
            share_b = range_check.share_b(v, products_b, h)
            opened = range_check.opened(share_a, share_b, h)
            if range_check.passed(opened) is not good or range_check.verdict(a, b, rows, h) is not good:
                raise AssertionError(f"{name} at {dimension}: expected {good}")
            cases.append(
                {
                    "name": name,
                    "dimension": dimension,
                    "challenge": challenge.hex(),
                    "share_seed": key.hex(),
                    "changed": _compact(x, dimension, name),
                    "products_seed": seed(f"range products {dimension} {name}").hex(),
                    "operand_a_sha256": digest(u),
                    "operand_b_sha256": digest(v),
                    "share_a_sha256": digest(share_a),
                    "share_b_sha256": digest(share_b),
                    "opened_sha256": digest(opened),
                    "passes": good,
                }
            )
    tables = [
        {
            "challenge": seed(f"projections {length}").hex(),
            "length": length,
            "first": [row[:8] for row in range_check.projections(seed(f"projections {length}"), length)[:3]],
            "sha256": _ternary_digest(range_check.projections(seed(f"projections {length}"), length)),
        }
        for length in (1, 3, 4, SHORT, K)
    ]
    return {"projections": tables, "checks": cases}


def _ternary_digest(rows: list[list[int]]) -> str:
    return hashlib.sha256(bytes(x % 256 for row in rows for x in row)).hexdigest()


def _compact(x: list[int], dimension: int, name: str) -> dict[str, Any]:
    """The compact form from which a test rebuilds x: short vectors spelled out, long ones as runs of signed numbers."""
    if dimension == SHORT:
        return {"vector": hexes(x)}
    e = 2**LOG2_E
    for label, norm in (("30", 30), ("1000", 1000), ("2", 2)):
        if x == honest(label, dimension, norm * e):
            return {"honest": label, "norm_units": norm * e}
    base = honest(f"honest {dimension}", dimension, e)
    added = ring.subtract(x, base)
    count = sum(1 for v in added if v)
    if x == [0] * dimension:
        return {"zero": True}
    if count and any(v != added[0] for v in added[:count]):
        raise AssertionError(f"{name} cannot be written compactly")
    return {"honest": f"honest {dimension}", "norm_units": e, "add": f"{added[0]:016x}", "count": count}


def rebuild(case: dict[str, Any]) -> list[int]:
    """The attacked vector of a range-check case."""
    changed, dimension = case["changed"], case["dimension"]
    if "vector" in changed:
        return [int(v, 16) for v in changed["vector"]]
    if "zero" in changed:
        return [0] * dimension
    x = honest(changed["honest"], dimension, changed["norm_units"])
    value, count = int(changed.get("add", "0"), 16), changed.get("count", 0)
    return [(v + value) % ring.MODULUS if i < count else v for i, v in enumerate(x)]


def products() -> dict[str, Any]:
    cases = []
    for name, lengths in (("one", [1]), ("mixed", [5, 1, 1, 3]), ("edges", [8]), ("measured", [SHORT, *[1] * 40])):
        size = sum(lengths)
        x, y = (words(f"{side} {name}", size) for side in "xy")
        if name == "edges":
            x, y = list(EDGES), list(reversed(EDGES))
        seed_a, seed_b = seed(f"dealer a {name}"), seed(f"dealer b {name}")
        a, c_a = product.dealer_half_a(seed_a, lengths)
        b, c_b = product.dealer_vector_b(seed_b, lengths), product.dealer_corrections(seed_a, seed_b, lengths)
        masked_a, masked_b = product.masked(x, a), product.masked(y, b)
        p_a, p_b = product.finish_a(x, masked_b, c_a, lengths), product.finish_b(masked_a, b, c_b, lengths)
        pairs = zip(product.segments(x, lengths), product.segments(y, lengths), strict=True)
        if ring.add(p_a, p_b) != [ring.inner(p, q) for p, q in pairs]:
            raise AssertionError("the reference's products do not add up")
        cases.append(
            {
                "lengths": lengths,
                "x": hexes(x),
                "y": hexes(y),
                "seed_a": seed_a.hex(),
                "seed_b": seed_b.hex(),
                "corrections": hexes(c_b),
                "masked_a": hexes(masked_a),
                "masked_b": hexes(masked_b),
                "product_a": hexes(p_a),
                "product_b": hexes(p_b),
            }
        )
    zero = [
        {
            "key": seed("zero").hex(),
            "context": context,
            "sharing": hexes(product.zero_sharing(seed("zero"), context, length)),
        }
        for context, length in (("round 1 attempt 1 site-b", 41), ("round 1 attempt 2 site-b", 3))
    ]
    return {"products": cases, "zero_sharing": zero}


def distances() -> dict[str, Any]:
    queries = [
        {
            "sketch": hexes(EDGES + words("query", 8)),
            "numerator": n,
            "grid": grid,
            "query": hexes(product.query(EDGES + words("query", 8), n, grid)),
        }
        for n, grid in ((32, 32), (31, 32), (1, 32), (16, 32), (1, 1), (2, 3), (65535, 65536))
    ]
    cases = []
    for dimension in (SHORT, SKETCHED):
        blocks, challenge = (1 if dimension <= K else 4), seed(f"distance challenge {dimension}")
        own = honest(f"requester {dimension}", dimension, 2**LOG2_E)
        for numerator in (32, 17, 1):
            raw = honest(f"site {dimension} {numerator}", dimension, 2**LOG2_E * numerator // GRID)
            q = product.query(sketch.sketch(challenge, own, K), numerator, GRID)
            key, query_key = seed(f"d {dimension} {numerator}"), seed(f"q {dimension} {numerator}")
            x_a = sketch.sketch(challenge, ring.expand(key, "SHARE", dimension), K)
            x_b = sketch.sketch(challenge, ring.split(raw, key), K)
            q_a = ring.expand(query_key, "QUERY", len(q))
            d_a, d_b = ring.subtract(x_a, q_a), ring.subtract(x_b, ring.subtract(q, q_a))
            p_a = words(f"p {dimension} {numerator}", 1)[0]
            p_b = (ring.inner(d_a, d_b) - p_a) % ring.MODULUS
            a, b = product.squared_distance_shares(d_a, d_b, p_a, p_b)
            d = ring.subtract(sketch.sketch(challenge, raw, K), q)
            if (a + b) % ring.MODULUS != sum(ring.signed(v) ** 2 for v in d):
                raise AssertionError("the opened square is not the true integer")
            cases.append(
                {
                    "dimension": dimension,
                    "numerator": numerator,
                    "challenge": challenge.hex(),
                    "requester": {"label": f"requester {dimension}", "norm_units": 2**LOG2_E},
                    "site": {"label": f"site {dimension} {numerator}", "norm_units": 2**LOG2_E * numerator // GRID},
                    "share_seed": key.hex(),
                    "query_seed": query_key.hex(),
                    "query_sha256": digest(q),
                    "difference_a_sha256": digest(d_a),
                    "difference_b_sha256": digest(d_b),
                    "product_a": f"{p_a:016x}",
                    "product_b": f"{p_b:016x}",
                    "distance_a": f"{a:016x}",
                    "distance_b": f"{b:016x}",
                    "distance": product.open_distance(a, b, numerator, GRID, blocks, LOG2_E),
                }
            )
    bad = [{"share_a": f"{a:016x}", "share_b": f"{b:016x}"} for a, b in ((2**63, 0), (2**64 - 1, 0), (2**62, 2**62))]
    return {"queries": queries, "distances": cases, "bad_openings": bad}
