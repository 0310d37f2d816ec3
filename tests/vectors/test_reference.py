"""The committed vectors are what the reference computes today, and the reference agrees with outside sources."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from tests.reference import field, numbers, product, range_check, release, ring, rules
from tests.vectors.generate import BUILDERS
from tests.vectors.material import FOLDER, load, seed


@pytest.mark.parametrize("name", BUILDERS)
def test_the_reference_still_computes_the_committed_vectors(name):
    assert json.loads(json.dumps(BUILDERS[name]())) == load(name)


WRITTEN_ONCE = {"ckks"}
"""Vectors that the reference cannot compute, since SEAL draws its own noise: test_ckks opens them."""


def test_the_vectors_stay_small_and_are_all_built():
    files = list(FOLDER.glob("*.json"))
    assert {file.stem for file in files} == set(BUILDERS) | WRITTEN_ONCE
    assert sum(file.stat().st_size for file in files) < 300_000


def test_aes_against_fips_197_appendix_c3():
    key, plain = bytes(range(32)), bytes.fromhex("00112233445566778899aabbccddeeff")
    assert ring.aes_block(key, plain).hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_field_against_the_gcm_specification_test_case_2():
    # McGrew & Viega, "The Galois/Counter Mode of Operation", appendix B, test case 2: one block, then the lengths.
    point = bytes.fromhex("66e94bd4ef8a2c3b884cfa59ca342b2e")
    block = bytes.fromhex("0388dace60b6a392f328c2b971b2fe78")
    lengths = (128).to_bytes(16, "big")
    first = field.multiply(block, point)
    assert first.hex() == "5e2ec746917062882c85b0685353deb7"
    assert field.multiply(field.xor(first, lengths), point).hex() == "f38cbb1ad69223dcc3457ae5b6b0f885"


def test_field_axioms():
    x, y, z = (seed(f"field {i}")[:16] for i in range(3))
    assert field.multiply(x, field.ONE) == x == field.multiply(field.ONE, x)
    assert field.multiply(x, y) == field.multiply(y, x)
    assert field.multiply(field.multiply(x, y), z) == field.multiply(x, field.multiply(y, z))
    assert field.multiply(x, field.xor(y, z)) == field.xor(field.multiply(x, y), field.multiply(x, z))
    power = x
    for _ in range(128):
        power = field.multiply(power, power)
    assert power == x  # x^(2^128) = x in a field of 2^128 elements


def test_rows_are_the_transposed_columns():
    columns = [seed(f"columns {j}") for j in range(128)]
    rows = field.rows_of(columns)
    assert len(rows) == 256
    assert all(field.bit(rows[i], j) == field.bit(columns[j], i) for i in (0, 1, 100, 255) for j in range(128))


def test_bad_cases_are_refused_by_the_reference():
    for alpha in load("fixed_point")["bad_alphas"]:
        with pytest.raises(ValueError, match="lies in"):
            numbers.nearest_grid_point(alpha, 32)
    for bad in load("distance")["bad_openings"]:
        with pytest.raises(ValueError, match="below"):
            product.open_distance(int(bad["share_a"], 16), int(bad["share_b"], 16), 32, 32, 1, 21)
    cases = load("release")
    mask_seed, bound = bytes.fromhex(cases["round"]["mask_seed"]), cases["round"]["bound"]
    for within in cases["within_bound"]:
        assert abs(release.open_aggregate([int(within, 16)], mask_seed, bound)[0]) == bound
    for beyond in cases["out_of_bound"]:
        with pytest.raises(ValueError, match="bounds"):
            release.open_aggregate([int(beyond, 16)], mask_seed, bound)
    for bad in load("sharing")["bad_commitments"]:
        salt, content_key, share = (bytes.fromhex(bad[name]) for name in ("salt", "content_key", "share"))
        assert ring.commitment(salt, content_key, share).hex() != bad["commitment"], bad["why"]


@pytest.mark.parametrize("h", [25, 26])
@pytest.mark.parametrize("c", [0, 1, 2**25 - 1, 2**26, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
def test_range_check_accepts_its_range_and_refuses_three_halves_of_it(h, c):
    """w is 0 or 1 for all y in [-2^(h-1), 2^(h-1)), whatever the other share is, and never for |y| >= 3 * 2^(h-1)."""
    half = 2 ** (h - 1)

    def passes(y: int) -> bool:
        return range_check.verdict([(y - c) % ring.MODULUS], [c], [[1]], h)

    assert all(passes(y) for y in (-half, 1 - half, -1, 0, 1, half - 1))
    assert not any(passes(y) for y in (-3 * half, 3 * half, 3 * half + 1, 2**40, -(2**40), 2**62, -(2**63)))


def test_sixty_percent_is_exact():
    assert rules.share_of_lightest(30, [10, 10, 30], 3, 0) == Fraction(3, 5)
    assert rules.contributes(30, [10, 10, 30], 3, 0)
    assert not rules.contributes(31, [10, 10, 30], 3, 0)
