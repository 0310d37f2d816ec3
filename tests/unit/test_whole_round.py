"""``protocol/round.py``: the round that documents begin with."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol import round as whole
from protocol.arithmetic.ring import Ring, to_signed
from protocol.errors import ProtocolViolation
from protocol.round import CONTRIBUTORS, EXAMPLE_SEED, PARAMETERS, REQUESTER, SITES, Contribution, Transcript, run_round
from protocol.sharing import Side, VectorShare
from tests.chunks import reconstruct

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def example() -> Transcript:
    return run_round(EXAMPLE_SEED)


def test_the_document_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Every number is printed again from the same seed, so this also holds that nothing else is drawn."""
    runpy.run_path(str(whole.__file__), run_name="__main__")
    printed = capsys.readouterr().out
    assert f"\n```\n{printed}```\n" in DOCUMENT.read_text(encoding="utf-8")


def test_another_seed_draws_everything_anew(example: Transcript) -> None:
    other = run_round(bytes(32))
    assert other.challenge != example.challenge
    for side in Side:
        for one, two in zip(example.masked_factors[side], other.masked_factors[side], strict=True):
            assert not np.any(one == two)


def test_shares_add_up(example: Transcript) -> None:
    for site, made in example.contributions.items():
        assert np.array_equal(reconstruct(made.shares[Side.A], made.shares[Side.B]), made.encoded)
        weighed = example.updates[site] * example.numerators[site] / PARAMETERS.weight_grid
        assert np.max(np.abs(to_signed(made.encoded) / PARAMETERS.scale - weighed)) < 1 / PARAMETERS.scale


def test_it_equals_the_plain_round(example: Transcript) -> None:
    weights = np.array([example.numerators[site] for site in example.released]) / PARAMETERS.weight_grid
    plain = weights @ np.array([example.updates[site] for site in example.released]) / weights.sum()
    rounding = len(SITES) / PARAMETERS.scale / weights.sum() + np.finfo(np.float32).eps * np.max(np.abs(plain))
    assert np.max(np.abs(example.average - plain)) < rounding
    assert example.released == SITES
    for one in example.opened:
        if one.site != REQUESTER:
            exact = np.linalg.norm(example.updates[one.site] - example.updates[REQUESTER])
            assert one.distance == pytest.approx(float(exact), rel=6 / np.sqrt(PARAMETERS.sketch_length))
    near, far = CONTRIBUTORS[0], CONTRIBUTORS[-1]
    assert example.next_numerators[near] > example.next_numerators[far]


def _wrap_around(made: Contribution) -> None:
    """Add half the ring to the first element."""
    _vector(made)[:1] += np.uint64(2**63)


def _lengthen(times: int, made: Contribution) -> None:
    """Share the update several times as long."""
    _vector(made)[:] += np.uint64(times - 1) * made.encoded


def _commit_twice(made: Contribution) -> None:
    """Show server B another commitment than server A."""
    made.collected[Side.B] = made.collected[Side.B].model_copy(update={"commitment_a": "0" * 64})  # type: ignore[index]


def _vector(made: Contribution) -> Ring:
    (share,) = (share for share in made.shares.values() if isinstance(share, VectorShare))
    return share.vector


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Contribution], None], int], Transcript]:
    """Run the round in which one site deviates and so many contributors are enough."""

    honest = whole.contribute

    def run(deviating: str, deviate: Callable[[Contribution], None], least: int) -> Transcript:
        def contribute(site: str, *rest: Any) -> Contribution:
            made = honest(site, *rest)
            if site == deviating:
                deviate(made)
            return made

        monkeypatch.setattr(whole, "contribute", contribute)
        monkeypatch.setattr(whole, "PARAMETERS", PARAMETERS.model_copy(update={"least_contributors": least}))
        return run_round(EXAMPLE_SEED)

    return run


WRONG = {
    "wraps around": (_wrap_around, "nothing is released"),
    "longer than a clipped update": (partial(_lengthen, 5), "nothing is released"),
    "committed to twice": (_commit_twice, "the round is skipped"),
}


@pytest.mark.parametrize(("deviate", "refused"), WRONG.values(), ids=WRONG)
def test_a_wrong_contribution_is_left_out_if_enough_others_stay(run_with, deviate, refused) -> None:
    found = run_with(CONTRIBUTORS[0], deviate, 2)
    assert found.released == (REQUESTER, *CONTRIBUTORS[1:])
    assert found.next_numerators[CONTRIBUTORS[0]] == found.numerators[CONTRIBUTORS[0]]
    with pytest.raises(ProtocolViolation, match=refused):
        run_with(CONTRIBUTORS[0], deviate, 3)


@pytest.mark.parametrize(
    ("deviate", "refused"),
    [
        (partial(_lengthen, 40), f"nothing is released: failed checks are {REQUESTER}$"),
        (_commit_twice, "the round is skipped"),
    ],
    ids=["out of range", "committed to twice"],
)
def test_no_round_goes_on_without_the_requester(run_with, deviate, refused) -> None:
    with pytest.raises(ProtocolViolation, match=refused):
        run_with(REQUESTER, deviate, 2)
