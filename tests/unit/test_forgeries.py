"""Forgeries against single primitives: correlations, seals, signatures, canonical forms, rounding.

Unit tests: no party of a federation can make these alone. What parties can send is in the catalogue (``share-...``,
``messages-...``, ``requests-...``).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import encode
from protocol.arithmetic.ring import to_signed
from protocol.channel.sealing import SealedReader, seal_message
from protocol.errors import BrokenSeal, ConsistencyCheckFailed, MalformedMessage
from protocol.messages.control import (
    ContributionHeader,
    ShareKind,
)
from protocol.ot import extension
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from tests.unit.parties import parties, study

CHI = bytes(range(16))
CONTENT_KEY, SALT = b"k" * 32, b"s" * 32


# --- OT extension -----------------------------------------------------------------------------------------------------


def cheating_columns(delta: bytes, columns: list[int]) -> tuple[extension.CheckAnswer, np.ndarray, np.ndarray]:
    """A receiver with another choice vector in some columns: its honest answer, the errors, the sender's columns."""
    rng = np.random.default_rng(17)
    choices = rng.integers(0, 256, 40, dtype=np.uint8)
    t = rng.integers(0, 256, (128, 40), dtype=np.uint8)
    errors = np.zeros((128, 40), dtype=np.uint8)
    errors[columns] = rng.integers(1, 256, (len(columns), 40), dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None]
    return extension.check_answer(CHI, choices, t), errors, t ^ bits * (choices ^ errors)


def passes(delta: bytes, seen: np.ndarray, claimed: extension.CheckAnswer) -> bool:
    try:
        extension.verify_check(CHI, delta, seen, claimed)
    except ConsistencyCheckFailed:
        return False
    return True


def test_two_factions_of_columns_cannot_both_be_claimed():
    """Half the columns hide x, half x': whichever x~ is claimed, with all t~ as they are, the other half shows."""
    delta = b"\xff" * 16
    second = list(range(64, 128))
    honest, errors, seen = cheating_columns(delta, second)
    seen = seen.copy()
    seen[second] ^= errors[second] ^ errors[64]
    other = honest.choices_hash ^ extension.column_hashes(CHI, errors[64:65])[0]
    for claimed in (honest.choices_hash, other):
        assert not passes(delta, seen, extension.CheckAnswer(claimed, honest.column_hashes))


# --- seals and signatures ---------------------------------------------------------------------------------------------


def contribution_header(site: str) -> ContributionHeader:
    return ContributionHeader(
        study_digest="a" * 64,
        round=1,
        attempt=1,
        site=site,
        side=Side.A,
        announcement_digest="b" * 64,
        commitment_a="c" * 64,
        commitment_b="d" * 64,
        share_kind=ShareKind.SEED,
        length=6,
    )


def reheaded(sealed: bytes, old: bytes, new: bytes) -> bytes:
    """A sealed message under another header, everything else as it was."""
    start = 8
    return sealed[:start] + len(new).to_bytes(4, "big") + new + sealed[start + 4 + len(old) :]


def test_a_header_of_the_same_meaning_in_other_bytes_does_not_open():
    """Spaces or another order of keys parse to the same header, but the seal is bound to the bytes."""
    keys = parties().keys["operator-a"]
    old = contribution_header("hospital-1").canonical()
    sealed = seal_message(old, [b"x" * 32], keys.sealing.public, CONTENT_KEY, SALT).whole()
    new = json.dumps(json.loads(old)).encode()
    assert ContributionHeader.parse(new) == ContributionHeader.parse(old)
    with pytest.raises(BrokenSeal):
        SealedReader(keys.sealing).feed(reheaded(sealed, old, new))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"600"', "true"])
def test_numbers_that_json_has_no_one_form_for_are_refused(value: str):
    """Otherwise canonical bytes, and with them digests, would fail or differ between parties."""
    text = study("a" * 64).canonical().decode()
    changed = text.replace('"round_deadline_s":600.0', f'"round_deadline_s":{value}')
    assert changed != text
    with pytest.raises(MalformedMessage, match=r"round_deadline_s|JSON"):
        type(study("a" * 64)).parse(changed.encode())


# --- fixed point ------------------------------------------------------------------------------------------------------


def test_rounding_is_unbiased_and_below_one_unit_at_every_magnitude():
    """A site's own fractions must not leak a bias: tiny, negative and near E = 2^21 alike.

    Each mean of n draws has standard deviation at most 0.5 / sqrt(n); six of them leave a chance below 1e-8 a value.
    """
    parameters = StudyParameters(dimension=1, clip_norm=1.0, least_contributors=3)
    n, unit = 40_000, 1 / parameters.scale
    fractions = [0.25, -0.25, 0.999, 1e-20, -1e-20, 5e-324, -5e-324, 2.0**21 - 0.25, -(2.0**21) + 0.25, 2.0**21, -1.0]
    for place, x in enumerate(fractions):
        coded = to_signed(encode(np.full(n, x * unit), parameters, bytes([place]) * 32)).astype(np.float64)
        assert np.max(np.abs(coded - x)) < 1
        assert abs(np.mean(coded) - x) <= 6 * 0.5 / np.sqrt(n)
        if x == round(x):
            assert np.all(coded == x)
