"""``moiety study ranking`` and ``moiety study summary``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from rich.table import Table

from client_agent.cli.tables import add_row, console, plain, table
from client_agent.site.journal import StudyJournal
from client_agent.study.results import RANKING_FILE, SUMMARY_FILE, Ranking, Summary
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.summary.table_one import (
    QUANTILES,
    CategorySummary,
    NumericSummary,
    TableOne,
    scaling_of,
    scaling_text,
    spread_unknown,
)


def show_rankings(state_dir: Path, study: str | None, *, json_output: bool) -> None:
    """The rankings kept below ``state_dir``. Raises: ConfigurationError when there are none"""
    found = sorted((state_dir / "studies").glob(f"*/{RANKING_FILE}"))
    chosen = [path for path in found if study in (None, path.parent.name)]
    if not chosen:
        which = "any study" if study is None else f"study {study!r}"
        raise ConfigurationError(
            f"key 'state_dir': {state_dir} has no ranking of {which}; the requester keeps one once the sites of a "
            "study with a [ranking] table were ranked"
        )
    for path in chosen:
        ranking = StudyJournal(state_dir, path.parent.name).read(path, Ranking)
        if ranking is not None and json_output:
            sys.stdout.write(ranking.model_dump_json() + "\n")
        elif ranking is not None:
            _print_ranking(ranking)


def _print_ranking(ranking: Ranking) -> None:
    if ranking.problem or ranking.own_loss is None or ranking.judged_on is None:
        console().print(plain(f"{ranking.study}: the sites were not ranked: {ranking.problem}"))
        for absent in ranking.unranked:
            console().print(plain(f"  {absent.site}: {absent.reason}"))
        return
    title = f"{ranking.study}: transfer losses on {ranking.requester}'s {ranking.judged_on.value} examples"
    exact = None if ranking.error_bound is None else f"exact to {ranking.error_bound:.1g}"
    shown = table("rank", "site", "transfer loss", title=title, caption=exact)
    for place, one in enumerate(ranking.sites, 1):
        add_row(shown, str(place), one.site, "failed its range check" if one.loss is None else f"{one.loss:.4f}")
    for absent in ranking.unranked:
        add_row(shown, "", absent.site, f"not ranked: {absent.reason}")
    own = f"{ranking.requester} itself{ranking.judged_on.caveat}"
    add_row(shown, "", own, f"{ranking.own_loss:.4f}", style="dim")
    console().print(shown)


_NOT_PRIVATE = (
    "counts and sums are rounded, columns and categories of few patients left out; rounded sums move a figure by at "
    "most what stands behind ±. This is not differential privacy. Quantiles are approximate"
)
_OTHERS = "(others)"
_WITHIN = ("mean_within", "sd_within")


def show_summary(state_dir: Path, study: str, *, json_output: bool, csv_output: bool, scaling: Path | None) -> None:
    """Show what the sites of a study opened together. Raises: ConfigurationError where there is nothing"""
    summary, opened = _read_summary(state_dir, study)
    if scaling is not None:
        common = scaling_of(opened, summary.study, summary.round)
        rewrite(scaling, scaling_text(common))
        sys.stderr.write(f"{scaling}: {len(common.columns)} columns, digest {common.digest}\n")
        unknown = [one.name for one in opened.numeric if spread_unknown(one)]
        if unknown:
            sys.stderr.write(
                f"{scaling}: {', '.join(unknown)}: rounding may have made half of the SD or more; the largest SD that "
                "fits is written: declare a narrower range in the next study's schema, or centre and spread\n"
            )
    if json_output:
        sys.stdout.write(summary.model_dump_json() + "\n")
    elif csv_output:
        _write_csv(opened)
    else:
        console().print(table_of(opened, f"{study}: {len(summary.sites)} sites: {', '.join(summary.sites)}"))


def _read_summary(state_dir: Path, study: str) -> tuple[Summary, TableOne]:
    folder = state_dir / "studies" / study
    found = StudyJournal(state_dir, study).read(folder / SUMMARY_FILE, Summary) if folder.is_dir() else None
    if found is None:
        raise ConfigurationError(
            f"key 'state_dir': {state_dir} has no summary of study {study!r}; a site keeps one once the summaries of a "
            "study with a [summary] table were summed"
        )
    if found.table is None:
        raise ConfigurationError(f"study {study!r} has no summary: {found.problem}")
    return found, found.table


def table_of(opened: TableOne, title: str) -> Table:
    """Table one, for a terminal."""
    shown = table("column", "values", "missing", "mean", "SD", "median (quartiles)", title=title, caption=_NOT_PRIVATE)
    for one in opened.numeric:
        mean, sd = _text(one.mean, one.mean_within), _text(one.sd, one.sd_within)
        add_row(shown, one.name, str(one.values), str(one.missing), mean, sd, _quartiles(one))
    for column in opened.categories:
        add_row(shown, column.name, str(column.values), str(column.missing), "", "", "")
        for name, count in _counts(column):
            add_row(shown, f"  {name}", str(count), "", _share(count, column.values), "", "", style="dim")
    for pair in opened.covariances:
        shown.add_section()
        name = f"{pair.first} x {pair.second}"
        add_row(shown, name, str(pair.values), "", f"covariance {_text(pair.covariance, pair.within)}", "", "")
    return shown


def _write_csv(opened: TableOne) -> None:
    """A line per column or category; bins are the histogram's counts, from the range's lower end on."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    quantiles = [f"q{round(100 * at):02d}" for at in QUANTILES]
    writer.writerow(
        ["column", "category", "values", "missing", "mean", "sd", *quantiles, "low", "high", "bins", *_WITHIN]
    )
    for one in opened.numeric:
        values = [str(quantile.value) for quantile in one.quantiles] or [""] * len(quantiles)
        bins = " ".join(map(str, one.histogram))
        numbers = (one.values, one.missing, one.mean, one.sd, *values, one.low, one.high, bins)
        writer.writerow([one.name, "", *numbers, one.mean_within, one.sd_within])
    blank = [""] * (2 + len(quantiles) + 3 + len(_WITHIN))
    for column in opened.categories:
        writer.writerow([column.name, "", column.values, column.missing, *blank])
        for name, count in _counts(column):
            writer.writerow([column.name, name, count, "", *blank])


def _counts(column: CategorySummary) -> list[tuple[str, int]]:
    return [(_OTHERS if one.name is None else one.name, one.count) for one in column.counts]


def _text(value: float | None, within: float | None) -> str:
    if value is None:
        return "too few"
    return f"{value:.4g}" if within is None else f"{value:.4g} ± {within:.2g}"


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %" if of else ""


def _quartiles(one: NumericSummary) -> str:
    at = {quantile.at: quantile.value for quantile in one.quantiles}
    return f"{at[0.5]:.4g} ({at[0.25]:.4g} to {at[0.75]:.4g})" if at else ""
