"""The page on noise from made lines, and the benchmark behind its cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.papers.noise import noise_of_servers
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


def of_sites(case: str, left_out: str = "") -> list[RunLine]:
    """Two seeds of every variant that the case has; accuracy falls with the place of the epsilon."""
    (one,) = (one for one in noise_of_servers.CASES if one.case == case)
    read = one.read(STUDIES)
    return [
        line(case=case, variant=variant.name, seed=seed, accuracy=(0.5, 0.9 - 0.05 * place + 0.01 * seed))
        for place, epsilon in enumerate(noise_of_servers.EPSILONS)
        if epsilon != left_out and (variant := noise_of_servers.variant_of(read, epsilon)) is not None
        for seed in (0, 1)
    ]


def test_noise_of_servers_has_a_row_for_every_number_of_sites_and_what_was_not_asked_for_is_no_number(
    tmp_path: Path,
) -> None:
    page = Page(tmp_path / "noise.md", "noise")
    found = {one.case: of_sites(one.case) for one in noise_of_servers.CASES}
    noise_of_servers.write(page, found, {"noise_sites_heart": 0.625}, STUDIES)
    page.write()
    text = page.path.read_text(encoding="utf-8")
    cells = " | ".join(f".{value} ± .005" for value in (905, 855, 805, 755, 705, 655, 605))
    assert f"| heart disease, four hospitals | {cells} | .625 |" in text
    cells = " | ".join(f".{value} ± .005" for value in (905, 855, 805, 755))
    assert f"| MNIST, 100 sites | {cells} | - | - | .605 ± .005 | - |" in text
    assert "| MNIST, 100 sites | 30 | 1e-05 | 7,850 | 0.747: 0.94 | 3.497: 4.4 | - | - | 22.172: 28 |" in text
    assert "epsilon 8" in (tmp_path / "noise_sites.svg").read_text(encoding="utf-8")
    assert "Not run yet" not in text


def test_cases_of_servers_that_were_not_run_are_named_and_what_is_half_run_is_drawn_with_a_gap(
    tmp_path: Path,
) -> None:
    page = Page(tmp_path / "noise.md", "noise")
    found = {
        "noise_sites_mnist_10": of_sites("noise_sites_mnist_10"),
        "noise_sites_mnist_20": of_sites("noise_sites_mnist_20", left_out="8"),
    }
    noise_of_servers.write(page, found, {}, STUDIES)
    page.write()
    text = page.path.read_text(encoding="utf-8")
    missing = "heart disease, four hospitals; digits, ten sites; MNIST, 50 sites; MNIST, 100 sites."
    assert f"**Not run yet:** {missing}" in text
    drawn = (tmp_path / "noise_sites.svg").read_text(encoding="utf-8")
    assert "epsilon 8" in drawn
    assert "epsilon 4" not in drawn
    assert "nan" not in drawn.lower().replace("dominant", "")
    nothing = Page(tmp_path / "nothing.md", "nothing")
    noise_of_servers.write(nothing, {}, {}, STUDIES)
    nothing.write()
    assert "| accuracy |" not in nothing.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("one", noise_of_servers.CASES, ids=lambda one: one.case)
def test_the_noise_of_servers_in_every_variant_keeps_its_epsilon(one) -> None:
    case = one.read(STUDIES)
    spent = {epsilon: noise_of_servers.spent_of(case, one, epsilon) for epsilon in noise_of_servers.EPSILONS}
    assert spent["none"] is None
    assert spent["clipped"] is None
    found = {epsilon: value for epsilon, value in spent.items() if value is not None}
    assert {"64", "8", "1"} <= set(found)
    assert all(0.95 * float(epsilon) < value <= float(epsilon) for epsilon, value in found.items())
    assert case.table.sites in (None, one.sites)


def test_a_guess_is_the_most_frequent_class_and_data_that_are_not_there_give_none(tmp_path: Path) -> None:
    found = noise_of_servers.guesses(STUDIES, tmp_path)
    assert set(found) == {noise_of_servers.DIGITS.case}
    assert found[noise_of_servers.DIGITS.case] == pytest.approx(0.6, abs=0.02)
