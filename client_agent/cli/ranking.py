"""``moiety study ranking``: a table per study, or JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from client_agent.cli.tables import add_row, console, plain, table
from client_agent.study.ranking import RANKING_FILE, Ranking
from protocol.errors import ConfigurationError


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
        ranking = _read_ranking(path)
        if json_output:
            sys.stdout.write(ranking.model_dump_json() + "\n")
        else:
            _print_ranking(ranking)


def _read_ranking(path: Path) -> Ranking:
    try:
        return Ranking.model_validate_json(path.read_bytes())
    except ValidationError as error:
        wrong = error.error_count()
        raise ConfigurationError(f"{path}: not a ranking of this version ({wrong} fields are wrong)") from None


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
