"""The HAR page: personal affine layers on thirty people (Roschewitz et al. 2021), and tampered data found by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.papers.page import Page
from harness.simulate.charts import number
from harness.simulate.comparison import PersonalCase, PersonalLine, ResultFolder, read_personal_case
from harness.simulate.comparison_report import PUBLISHED, detections, heatmap, personal_layers, score_curves, summaries

CASE: Final = "har_ifedavg"
TAMPERED: Final = {"har_ifedavg_shifted": "shifted features", "har_ifedavg_swapped": "relabelled examples"}
TITLES: Final = {
    "ifedavg": "iFedAvg",
    "ifedavg_target": "iFedAvg, target layer too",
    "apfl": "APFL, adaptive",
    "apfl_fixed": "APFL, fixed mixing",
    "fedavg": "FedAvg",
    "fedavg_fine_tuned": "FedAvg, fine-tuned",
    "local": "Local",
    "centralised": "centralised",
}


def write(page: Page, studies: Path, runs: Path) -> None:
    """From the folders of the three cases below ``runs``; what has not run is said."""
    page.text(
        "Thirty people, each a site with 281 to 409 windows of movements; a third of them (at least 100) held out, by "
        "activity. 561 features, 128 and 64 tanh units, six activities. Weighted F1 on every site's held-out windows, "
        "averaged over sites, and at the worst site; ± is the standard error over seeds. Features are scaled as the "
        "data set is published: the paper's sample configuration standardises per person before the split, so that "
        "held-out windows have a part in it."
    )
    folder = ResultFolder(runs / CASE)
    lines = folder.lines()
    page.heading("All people")
    if lines:
        _table(page, lines)
        page.figure("scores", score_curves(lines), "F1 over rounds, mean over sites and the worst site.")
        _layers(page, read_personal_case(studies / f"{CASE}.toml"), folder, lines)
    else:
        page.text("**Not run yet.**")
    page.heading("Found by their personal layers")
    page.text(
        "One person's data are changed on purpose. Entries of b and w more than two standard deviations from their "
        "column's mean over sites are marked; nobody but the site itself sees its layer, so a site finds out about "
        "itself, or all sites agree to compare."
    )
    for name, title in TAMPERED.items():
        _tampered(page, read_personal_case(studies / f"{name}.toml"), ResultFolder(runs / name), title)
    page.heading("How this page was made")
    commands = "\n".join(
        f"moiety simulate harness/studies/{name}.toml --out results-out/{name}" for name in (CASE, *TAMPERED)
    )
    page.text(f"```sh\n{commands}\n```")
    page.text(_provenance(lines))


def _table(page: Page, lines: Sequence[PersonalLine]) -> None:
    rows = []
    for one in summaries(lines):
        published = PUBLISHED.get(one.variant)
        quoted = ("", "") if published is None else (number(published[0]), number(published[1]))
        shown = (str(one.mean_f1), quoted[0], str(one.worst_f1), quoted[1])
        rows.append((TITLES.get(one.variant, one.variant), *shown, str(one.rounds), str(one.seeds)))
    page.table(("method", "mean F1", "published", "worst F1", "published", "rounds", "seeds"), rows)
    missing = [title for name, title in TITLES.items() if all(line.variant != name for line in lines)]
    if missing:
        page.text(f"**Not run yet:** {', '.join(missing)}.")


def _layers(page: Page, case: PersonalCase, folder: ResultFolder, lines: Sequence[PersonalLine]) -> None:
    """Heatmaps of the first run with an input layer."""
    line = next((line for line in lines if line.variant == "ifedavg"), None)
    if line is None:
        return
    for name, layers in personal_layers(case, folder, line):
        for symbol, values, neutral in (("b", layers.bias, 0.0), ("w", layers.weight, 1.0)):
            title = f"{symbol} of the {name} layer minus {neutral:g}, seed {line.seed}"
            svg = heatmap(values, neutral, line.sites, "feature" if name == "input" else "class", title)
            page.figure(f"{name}_{symbol}", svg, f"{title}: sites by columns; dots are beyond two deviations.")


def _tampered(page: Page, case: PersonalCase, folder: ResultFolder, title: str) -> None:
    found = detections(case, folder)
    if not found:
        page.text(f"**{title}: not run yet.**")
        return
    page.table(
        (
            f"{title}: variant, seed",
            "site",
            "layer",
            "changed columns marked",
            "marked elsewhere",
            "rank of the strongest",
        ),
        [
            (
                f"{one.variant}, {one.seed}",
                one.site,
                one.layer,
                f"{one.found} of {one.changed}",
                f"{100 * one.elsewhere:.1f} %",
                str(one.rank),
            )
            for one in found
        ],
    )


def _provenance(lines: Sequence[PersonalLine]) -> str:
    versions = sorted({f"{name} {version}" for line in lines for name, version in line.versions.items()})
    hours = sum(line.seconds for line in lines) / 3600
    return f"{len(lines)} runs, {hours:.1f} hours of one core. {', '.join(versions)}."
