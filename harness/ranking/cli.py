"""``moiety rank``: whose data resemble mine, before any training together?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from client_agent.cli.tables import console as console_for
from client_agent.learning.ridge import JudgedOn
from harness.datasets.registry import DataRequest
from harness.ranking.rank import PLAIN_DISCLOSES, Ranking, RankOptions, rank
from harness.simulation.run_one import Protection
from host.subcommand import command
from protocol.errors import ConfigurationError


@dataclass(frozen=True)
class Asked:
    """Every site trains alone; the requester learns how well each model does on its data, and nothing else."""

    data: Annotated[str, typer.Argument(help="A data set's name, as in a case's [case] table.")] = "breast_cancer"
    split: Annotated[str, typer.Option(help="Which split of it.")] = ""
    sites: Annotated[int | None, typer.Option(min=2, help="How many sites, where the data set leaves it open.")] = None
    requester: Annotated[str | None, typer.Option(help="The site whose data the models are judged on.")] = None
    folder: Annotated[
        Path | None, typer.Option("--data", envvar="MOIETY_DATA", help="Folder of the public data files.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Fixes the split and every draw.")] = 0
    protection: Annotated[Protection, typer.Option(help="secure: only the losses open.")] = Protection.SECURE
    study: Annotated[Path | None, typer.Option(help="A study file: rank with its model (plain only).")] = None
    clip_norm: Annotated[float, typer.Option(help="Power of two that no site's model vector exceeds.")] = 16.0
    yes: Annotated[bool, typer.Option("--yes", help="Accept what the plain variant discloses.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="The ranking as JSON.")] = False


def _rank(asked: Asked) -> None:
    if asked.protection is Protection.CKKS:
        raise ConfigurationError("--protection ckks adds updates and ranks no models; take secure, or plain")
    secure = asked.protection is Protection.SECURE
    if not secure:
        _confirm(asked.yes)
    request = DataRequest(
        data=asked.data,
        seed=asked.seed,
        split=asked.split,
        sites=asked.sites,
        requester=asked.requester,
        folder=asked.folder,
    )
    ranking = rank(RankOptions(request, secure=secure, study=asked.study, clip_norm=asked.clip_norm))
    if asked.as_json:
        typer.echo(ranking.model_dump_json())
    else:
        console_for(stderr=False).print(_table(ranking))


rank_sites = command(Asked, _rank)


def _confirm(yes: bool) -> None:
    """What the plain variant discloses, and consent to it."""
    typer.echo(PLAIN_DISCLOSES, err=True)
    if not yes and not typer.confirm("Go on?", err=True):
        raise ConfigurationError("the plain variant was not accepted; give --yes, or --protection secure")


def _table(ranking: Ranking) -> Table:
    judged = f"on {ranking.requester}'s {ranking.judged_on} data"
    table = Table(title=f"{ranking.data}: {ranking.model}, {ranking.protection}, {judged}")
    for column in ("rank", "site", "transfer loss", "training examples"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for place, one in enumerate(ranking.sites, 1):
        loss = "failed its range check" if one.loss is None else f"{one.loss:.4f}"
        table.add_row(str(place), one.site, loss, str(one.samples))
    own = f"{ranking.requester} itself{JudgedOn(ranking.judged_on).caveat}"
    table.add_row("", own, f"{ranking.own_loss:.4f}", "", style="dim")
    return table
