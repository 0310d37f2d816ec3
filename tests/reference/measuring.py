"""One site's part of a measured round, both servers at once (docs/protocol.md 6 to 8).

A pair of lists is a vector's share at A and at B. Correlations are a dealer's.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference import product
from tests.reference import range_check as ranges
from tests.reference.ring import MODULUS, subtract

Shares = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Messages:
    """Messages of both servers: to each other, and to the requester."""

    operands: Shares
    masked: Shares
    range_shares: Shares
    values: Shares


def factors(opens: str, sketch: Shares, query: Shares | None, earlier: list[Shares]) -> list[Shares]:
    """The vectors of A and of B behind each quantity that is opened about this site.

    ``earlier`` are the sketches of the sites before it; a norm is a distance from nothing.
    """
    if opens == "pairs":
        return [(subtract(other[0], sketch[0]), subtract(other[1], sketch[1])) for other in earlier]
    if query is None:
        return []
    if opens == "inner_products":
        return [([*query[0], *sketch[0]], [*sketch[1], *query[1]])]
    return [(subtract(sketch[0], query[0]), subtract(sketch[1], query[1]))]


def quantity_shares(opens: str, factor: Shares, products: tuple[int, int]) -> tuple[int, int]:
    """A's and B's shares of one quantity, from their shares of one product."""
    if opens == "inner_products":
        half = len(factor[0]) // 2
        query, sketch = (factor[0][:half], factor[1][half:]), (factor[0][half:], factor[1][:half])
        return product.inner_product_shares(query, sketch, *products)
    return product.squared_distance_shares(*factor, *products)


def measured_site(
    opens: str,
    sketch: Shares,
    query: Shares | None,
    earlier: list[Shares],
    rows: list[list[int]],
    h: int,
    seeds: tuple[bytes, bytes],
    zero_key: bytes,
    context: str,
) -> Messages:
    """Everything about one site; ``seeds`` are the correlation's, A's and B's."""
    pairs = factors(opens, sketch, query, earlier)
    bits = (ranges.operand_a(sketch[0], rows, h), ranges.operand_b(sketch[1], rows, h))
    lengths = [*(len(a) for a, _ in pairs), *[1] * ranges.PROJECTIONS]
    operands = (_all(pairs, 0) + bits[0], _all(pairs, 1) + bits[1])
    a, c_a = product.dealer_half_a(seeds[0], lengths)
    b, c_b = product.dealer_vector_b(seeds[1], lengths), product.dealer_corrections(*seeds, lengths)
    masked = (product.masked(operands[0], a), product.masked(operands[1], b))
    z = (product.finish_a(operands[0], masked[1], c_a, lengths), product.finish_b(masked[0], b, c_b, lengths))
    count = len(pairs)
    zero = product.zero_sharing(zero_key, context, len(lengths))
    checks = (ranges.share_a(bits[0], z[0][count:], h), ranges.share_b(bits[1], z[1][count:], h))
    fresh = [
        [(m + sign * r) % 2 ** (64 - h) for m, r in zip(check, zero[count:], strict=True)]
        for check, sign in zip(checks, (1, -1), strict=True)
    ]
    shares = [quantity_shares(opens, pair, (z[0][i], z[1][i])) for i, pair in enumerate(pairs)]
    values = (
        [(share + r) % MODULUS for (share, _), r in zip(shares, zero, strict=False)],
        [(share - r) % MODULUS for (_, share), r in zip(shares, zero, strict=False)],
    )
    return Messages(operands, masked, (fresh[0], fresh[1]), values)


def _all(pairs: list[Shares], place: int) -> list[int]:
    return [element for pair in pairs for element in pair[place]]
