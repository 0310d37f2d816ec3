"""Vectors of docs/protocol.md 15: seed, key, tags of updates, and both halves' errors, right and wrong."""

from __future__ import annotations

from typing import Any

from tests.reference import release, ring, tags
from tests.vectors.material import EDGES, LOG2_E, SHORT, hexes, honest, seed

STUDY = "5d" * 32


def tagged_rounds() -> dict[str, Any]:
    keys = [
        {
            "study_digest": STUDY,
            "round": number,
            "attempt": attempt,
            "seed": seed("tag seed").hex(),
            "seed_hash": tags.seed_hash(STUDY, number, seed("tag seed")),
            "shown": tags.shown_seed(seed("tag seed")).hex(),
            "key": tags.attempt_key(STUDY, number, attempt, seed("tag seed")).hex(),
            "kept_key": tags.kept_key(STUDY, number, attempt, seed("tag seed")).hex(),
        }
        for number, attempt in ((1, 1), (1, 2), (2, 1), (999_999, 1000))
    ]
    key, kept = (of(STUDY, 7, 1, seed("tag seed")) for of in (tags.attempt_key, tags.kept_key))
    updates = [honest(f"tagged {n}", SHORT, 2**LOG2_E) for n in range(3)]
    vectors = [[*x, *tags.tags(key, x), *tags.tags(kept, x)] for x in updates]
    shares = [seed(f"tagged share {n}") for n in range(3)]
    length = SHORT + 4
    y_a = release.total([ring.expand(share, "SHARE", length) for share in shares])
    y_b = release.total([ring.split(x, share) for x, share in zip(vectors, shares, strict=True)])
    pad, v = ring.expand(seed("t"), "OUTPUT_MASK", length), ring.add(release.masked_sum(y_a, seed("t")), y_b)
    checks = [tags.errors(key, pad), tags.errors(key, v)]
    if ring.add(*checks) != [0, 0] or any(any(tags.errors(k, ring.add(pad, v), p)) for p, k in enumerate((key, kept))):
        raise AssertionError("the tags of an honest sum are not its tags")
    return {
        "keys": keys,
        "round": {
            "key": key.hex(),
            "kept_key": kept.hex(),
            "updates": [hexes(x) for x in updates],
            "tags": [hexes(x[-4:]) for x in vectors],
            "mask_seed": seed("t").hex(),
            "mask_digest": tags.commitment_to_mask(seed("t")),
            "vector": hexes(v),
            "vector_digest": tags.vector_digest(v),
            "check_of_seed": hexes(checks[0]),
            "check_of_vector": hexes(checks[1]),
        },
        "changed": [_changed(key, v, place, by, checks) for place, by in _changes()],
    }


def _changes() -> list[tuple[int, int]]:
    return [(place, by) for place in (0, SHORT - 1, SHORT, SHORT + 1) for by in EDGES if by]


def _changed(key: bytes, v: list[int], place: int, by: int, checks: list[list[int]]) -> dict[str, Any]:
    """One element of v is another one: by how much both tags of the sum are off then."""
    other = [*v[:place], (v[place] + by) % ring.MODULUS, *v[place + 1 :]]
    off = ring.add(checks[0], tags.errors(key, other))
    if off == [0, 0]:
        raise AssertionError("a changed sum keeps its tags")
    return {"place": place, "by": f"{by:016x}", "errors": hexes(off)}
