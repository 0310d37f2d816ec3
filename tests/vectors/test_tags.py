"""The written vectors of tags, against protocol/tags (docs/protocol.md 15)."""

from __future__ import annotations

import numpy as np

from protocol.arithmetic.ring import Ring, Usage, expand, to_bytes
from protocol.sharing import VectorShare, chunk_source
from protocol.tags import (
    TagErrors,
    TagPair,
    TagSums,
    VectorDigest,
    attempt_key,
    errors_of,
    kept_key,
    mask_digest,
    seed_hash,
    shown_seed,
)
from tests.unit.parties import announcement
from tests.vectors.material import load


def ring(written: list[str]) -> Ring:
    return np.array([int(word, 16) for word in written], dtype=np.uint64)


def test_hash_and_key():
    for case in load("tags")["keys"]:
        seed = bytes.fromhex(case["seed"])
        of = announcement(case["study_digest"], case["round"])
        assert seed_hash(of.study_digest, of.round, seed) == case["seed_hash"]
        assert shown_seed(seed).hex() == case["shown"]
        assert attempt_key(of, case["attempt"], shown_seed(seed)).hex() == case["key"]
        assert kept_key(of, case["attempt"], seed).hex() == case["kept_key"]


def test_a_round():
    case = load("tags")["round"]
    key, t = bytes.fromhex(case["key"]), bytes.fromhex(case["mask_seed"])
    for update, tags in zip(case["updates"], case["tags"], strict=True):
        for pair, under in enumerate((key, bytes.fromhex(case["kept_key"]))):
            sums = TagSums(under)
            sums.add(ring(update))
            assert sums.values()[0].tolist() == ring(tags)[2 * pair :][:2].tolist()
    vector = ring(case["vector"])
    halves = [lambda start, stop: expand(t, Usage.OUTPUT_MASK, stop - start, start=start), lambda a, b: vector[a:b]]
    of_seed, of_vector = errors_of(key, vector.size, halves)
    assert of_seed.tolist() == ring(case["check_of_seed"]).tolist()
    assert of_vector.tolist() == ring(case["check_of_vector"]).tolist()
    assert (of_seed + of_vector).tolist() == [0, 0]
    kept = TagErrors(bytes.fromhex(case["kept_key"]), vector.size, pair=TagPair.KEPT)
    kept.add(vector + halves[0](0, vector.size))
    assert kept.values().tolist() == [[0, 0]]
    digest = VectorDigest()
    digest.update(to_bytes(vector))
    assert (mask_digest(t), digest.hexdigest()) == (case["mask_digest"], case["vector_digest"])


def test_changed_sums():
    case, changed = load("tags")["round"], load("tags")["changed"]
    key, of_seed = bytes.fromhex(case["key"]), ring(case["check_of_seed"])
    for change in changed:
        vector = ring(case["vector"])
        place = change["place"]
        vector[place : place + 1] += ring([change["by"]])
        errors = of_seed + errors_of(key, vector.size, [chunk_source(VectorShare(vector))])[0]
        assert errors.tolist() == ring(change["errors"]).tolist()
        assert errors.any()
