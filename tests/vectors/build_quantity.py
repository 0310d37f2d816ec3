"""Vectors of docs/protocol.md 8: one site's pairs, norm and inner product."""

from __future__ import annotations

from typing import Any

from tests.reference import measuring, product, ring, sketch
from tests.vectors.material import GRID, LOG2_E, SHORT, SKETCHED, K, digest, honest, seed, words

OPENS = ("distances", "norms", "pairs", "inner_products")


def _sketches(challenge: bytes, site: str, dimension: int) -> tuple[dict[str, Any], list[int], measuring.Shares]:
    """The vector's names, the sketch in the clear, and its shares."""
    raw, key = honest(f"{site} {dimension}", dimension, 2**LOG2_E), seed(f"share {site} {dimension}")
    shares = (
        sketch.sketch(challenge, ring.expand(key, "SHARE", dimension), K),
        sketch.sketch(challenge, ring.split(raw, key), K),
    )
    return {"label": f"{site} {dimension}", "share_seed": key.hex()}, sketch.sketch(challenge, raw, K), shares


def quantities() -> dict[str, Any]:
    cases = []
    for dimension in (SHORT, SKETCHED):
        challenge, blocks = seed(f"quantity challenge {dimension}"), 1 if dimension <= K else 4
        sites = [_sketches(challenge, site, dimension) for site in ("first", "second", "third")]
        (_, own, _), *_, (_, clear, shares) = sites
        earlier = [known for _, _, known in sites[:-1]]
        for opens in OPENS:
            asked = product.query(own, 0 if opens == "norms" else GRID, GRID)
            key = seed(f"quantity query {dimension} {opens}")
            at_a = ring.expand(key, "QUERY", len(asked))
            factors = measuring.factors(opens, shares, (at_a, ring.subtract(asked, at_a)), earlier)
            opened = []
            for i, factor in enumerate(factors):
                p_a = words(f"quantity product {dimension} {opens} {i}", 1)[0]
                p_b = (ring.inner(*factor) - p_a) % ring.MODULUS
                a, b = measuring.quantity_shares(opens, factor, (p_a, p_b))
                other = sites[i][1] if opens == "pairs" else asked
                if (a + b) % ring.MODULUS != _plain(opens, clear, other):
                    raise AssertionError(f"{opens}: the opened number is not the true integer")
                of = product.open_inner_product if opens == "inner_products" else product.open_distance
                opened.append(
                    {
                        "factor_a_sha256": digest(factor[0]),
                        "factor_b_sha256": digest(factor[1]),
                        "product_a": f"{p_a:016x}",
                        "share_a": f"{a:016x}",
                        "share_b": f"{b:016x}",
                        "opened": of(a, b, GRID, GRID, blocks, LOG2_E),
                    }
                )
            cases.append(
                {
                    "dimension": dimension,
                    "opens": opens,
                    "challenge": challenge.hex(),
                    "norm_units": 2**LOG2_E,
                    "sites": [named for named, _, _ in sites],
                    "query_seed": key.hex(),
                    "quantities": opened,
                }
            )
    return {"quantities": cases}


def _plain(opens: str, sketch_of_site: list[int], other: list[int]) -> int:
    if opens == "inner_products":
        pairs = zip(sketch_of_site, other, strict=True)
        return sum(ring.signed(x) * ring.signed(y) for x, y in pairs) % ring.MODULUS
    return sum(ring.signed(v) ** 2 for v in ring.subtract(sketch_of_site, other))
