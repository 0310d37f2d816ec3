"""The page on noise from made lines, and the benchmark behind its cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.papers.noise.noise import CASES, COUNTED, EPSILONS, MEMBERSHIP, RULES, spent_of, variant_of, write
from harness.papers.page import Page
from harness.simulation.files.study_files import STUDIES
from harness.simulation.runs import RunLine
from tests.unit.harness.papers.made import line


def runs(case: str, spread: float = 0.0) -> list[RunLine]:
    """Two seeds; accuracy falls with the place of the epsilon."""
    return [
        line(
            case=case, variant=variant_of(rule, epsilon), seed=seed, accuracy=(0.5, 0.9 - 0.05 * place + spread * seed)
        )
        for rule in RULES
        for place, epsilon in enumerate(EPSILONS)
        for seed in (0, 1)
    ]


def guessed(variant: str, auc: float) -> InferenceLine:
    told = Told(auc=auc, at_one_percent=0.02)
    return InferenceLine(
        study=MEMBERSHIP.case, variant=variant, rule="fedavg", requester="a", site="b", seed=0, sites=2, members=30,
        others=30, released=60, by_loss=told, by_reference=told, by_averages=told, apart=0.0, distance=None,
        weight=None, seconds=0.0,
    )  # fmt: skip


def test_the_page_has_each_epsilon_with_its_spread_and_what_every_site_spends(tmp_path: Path) -> None:
    page = Page(tmp_path / "noise.md", "noise")
    found = {one.case: runs(one.case, spread=0.01) for one in CASES}
    lines = [guessed(variant, auc) for variant, auc in zip(MEMBERSHIP.variants, (0.6, 0.55, 0.5), strict=True)]
    write(page, found, lines, STUDIES)
    page.write()
    text = page.path.read_text(encoding="utf-8")
    assert "| none | no noise, no clipping | .905 ± .005 |" in text
    assert "| 8 | 2.337 | .805 ± .005 |" in text
    assert "| Switzerland | 31 | 7.99 | 4.00 | 2.00 | 1.00 |" in text
    assert "| none | not run | .600, .020 |" in text
    assert (tmp_path / "noise_heart.svg").exists()
    assert (tmp_path / "noise_mnist.svg").exists()


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.case)
def test_the_noise_of_every_variant_keeps_its_epsilon_at_the_smallest_site(one) -> None:
    case, (_, fewest) = one.read(STUDIES), min(one.samples, key=lambda sample: sample[1])
    for epsilon in COUNTED:
        spent = float(spent_of(case, one, epsilon, fewest))
        assert 0.95 * float(epsilon) < spent <= float(epsilon)
