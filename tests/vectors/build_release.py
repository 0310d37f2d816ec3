"""Vectors of docs/protocol.md 4, 9 and 10: challenge, sum, output, weights."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from tests.reference import release, ring, rules
from tests.vectors.material import GRID, LOG2_E, SHORT, hexes, honest, seed


def releases() -> dict[str, Any]:
    coin = [
        {
            "round": number,
            "set_digest": seed("set").hex(),
            "nonce_a": seed("n_A").hex(),
            "nonce_b": seed("n_B").hex(),
            "commitment": release.coin_commitment(number, seed("set"), seed("n_A")).hex(),
            "challenge": release.challenge(seed("set"), seed("n_A"), seed("n_B")).hex(),
        }
        for number in (1, 10, 999)
    ]
    numerators = [32, 31, 17, 1]
    weight_sum = Fraction(sum(numerators), GRID)
    updates = [honest(f"release {n}", SHORT, 2**LOG2_E * n // GRID) for n in numerators]
    keys = [seed(f"release share {n}") for n in numerators]
    y_a = release.total([ring.expand(key, "SHARE", SHORT) for key in keys])
    y_b = release.total([ring.split(x, key) for x, key in zip(updates, keys, strict=True)])
    masked = release.masked_sum(y_a, seed("t"))
    combined = ring.add(masked, y_b)
    bound = math.ceil(3 * 2**LOG2_E * weight_sum) + len(numerators)
    opened = release.open_aggregate(combined, seed("t"), bound)
    if opened != [sum(ring.signed(x[i]) for x in updates) for i in range(SHORT)]:
        raise AssertionError("the opened aggregate is not the plain sum")
    edge = [bound, -bound]
    over = [bound + 1, -bound - 1, 2**63 - 1, -(2**63)]
    pad = ring.expand(seed("t"), "OUTPUT_MASK", 1)[0]
    return {
        "coin": coin,
        "round": {
            "numerators": numerators,
            "grid": GRID,
            "updates": [hexes(x) for x in updates],
            "share_seeds": [key.hex() for key in keys],
            "mask_seed": seed("t").hex(),
            "sum_a": hexes(y_a),
            "sum_b": hexes(y_b),
            "masked": hexes(masked),
            "combined": hexes(combined),
            "bound": bound,
            "opened": opened,
            "average": release.average(opened, weight_sum, LOG2_E),
        },
        "within_bound": [f"{(v - pad) % ring.MODULUS:016x}" for v in edge],
        "out_of_bound": [f"{(v - pad) % ring.MODULUS:016x}" for v in over],
    }


def weights() -> dict[str, Any]:
    erosion = []
    alpha, d_rels = 1.0, [0.3, 1.2, 0.0, 0.7, 2.5, 0.9, 2.7, 0.01, 4.09]
    for r, d_rel in enumerate(d_rels, start=1):
        after = rules.settle(rules.erode(alpha, r, 32, 50, 0.05, 0.2, d_rel), GRID)
        erosion.append({"round": r, "d_rel": d_rel, "before": alpha, "after": after})
        alpha = after
    lists = [
        (32, [32, 32, 32, 32], 3, 0),
        (32, [32, 32], 3, 0),
        (30, [10, 10, 30], 3, 0),
        (30, [10, 9, 30], 3, 0),
        (31, [10, 10, 30], 3, 0),
        (32, [1, 1, 1, 32], 4, 0),
        (3, [1, 1, 32, 32], 3, 0),
        (3, [1, 1, 1, 32], 4, 1),
        (32, [32, 32, 32, 32], 4, 2),
        (32, [32, 32, 32, 32, 32], 5, 1),
        (32, [32], 2, 0),
    ]
    policy = [
        {
            "own": own,
            "others": others,
            "least": least,
            "colluders": colluders,
            "contributes": rules.contributes(own, others, least, colluders),
        }
        for own, others, least, colluders in lists
    ]
    samples = ([0.5], [0.2, 0.8], [1.0, 0.1, 0.4], [0.9, 0.1, 0.3, 0.4])
    medians = [{"values": v, "median": rules.median(v)} for v in samples]
    return {
        "erosion": {
            "grid": GRID,
            "batch": 32,
            "samples": 50,
            "distance_penalty": 0.05,
            "size_penalty": 0.2,
            "steps": erosion,
        },
        "policy": policy,
        "median": medians,
    }
