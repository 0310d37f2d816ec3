"""``protocol/round.py``: the round that documents begin with."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from protocol import round as whole
from protocol.arithmetic.ring import to_signed
from protocol.round import CONTRIBUTORS, EXAMPLE_SEED, PARAMETERS, REQUESTER, SITES, Transcript, run_round
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
        for one, two in zip(example.masked[side], other.masked[side], strict=True):
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


def test_a_share_that_wraps_around_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = whole.contribute

    def contribute(site: str, *rest: object) -> whole.Contribution:
        made = honest(site, *rest)  # type: ignore[arg-type]
        if site == CONTRIBUTORS[0]:
            for share in made.shares.values():
                if isinstance(share, VectorShare):
                    share.vector[:1] += np.uint64(2**63)
        return made

    monkeypatch.setattr(whole, "contribute", contribute)
    assert run_round(EXAMPLE_SEED).released == (REQUESTER, *CONTRIBUTORS[1:])
