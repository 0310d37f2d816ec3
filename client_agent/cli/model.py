"""``moiety model``: the model in use, at every site that holds it.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.tables import ConfigOption, JsonOption, StudyArgument, add_row, console, settings_of, table
from host.files import UMASK
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from client_agent.model.card import ModelCard
    from client_agent.model.site_model import Comparison
    from client_agent.site.journal import Kept

UnfinishedOption = Annotated[
    bool, typer.Option("--unfinished", help="The shared model, where this site finished it alone.")
]
FederatedOption = Annotated[
    bool, typer.Option("--federated", help="The last shared model, where this site went on alone after it.")
]
BestOption = Annotated[
    bool, typer.Option("--best", help="Of the shared models, the best by this site's validation examples.")
]
HorizonOption = Annotated[
    list[float] | None,
    typer.Option(help="Survival: a time at which the folder predicts the probability too; may be repeated."),
]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _model() -> None:
    """Export a study's model, predict with it, and compare it; nothing leaves this machine."""
    os.umask(UMASK)


@app.command(name="export")
def export_command(
    name: StudyArgument,
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="The new folder.")],
    torch_export: Annotated[bool, typer.Option("--torch-export", help="Also model.pt2, which runs by itself.")] = False,
    unfinished: UnfinishedOption = False,
    federated: FederatedOption = False,
    best: BestOption = False,
    horizon: HorizonOption = None,
    json_output: JsonOption = False,
) -> None:
    """Export a study's model as a folder, with its model card.

    It also holds the study and the transformation of rows.

    Example: moiety model export heart --out heart-model --config settings.toml
    """
    from client_agent.model.export import digest_in, export
    from client_agent.model.site_model import held_model
    from client_agent.site.identity import load_identity
    from client_agent.study.approval import note_exported

    settings = settings_of(config)
    roster, _ = load_identity(settings)
    held = held_model(settings, name, unfinished=unfinished, which=_which(unfinished, federated, best))
    card = export(
        held,
        settings.data,
        out,
        is_requester=settings.site == roster.requester,
        program=torch_export,
        plugin=settings.plugin,
        horizons=horizon or (),
    )
    note_exported(settings, held.study, out.name, digest_in(card))
    sys.stdout.write(card.model_dump_json() + "\n" if json_output else _exported(card, out))


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="A folder of 'moiety model export'.")],
    input_file: Annotated[Path, typer.Option("--input", help="CSV or Parquet; without a schema .npz or CSV.")],
    out: Annotated[Path, typer.Option(help="The new CSV file.")],
    config: Annotated[
        Path | None, typer.Option(help="The agent's settings, for a plug-in or a library's network.")
    ] = None,
    site: Annotated[Path | None, typer.Option(help="TOML: how this site writes its tables.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to carry over, such as an id; may be repeated.")
    ] = None,
    plugin: Annotated[Path | None, typer.Option(help="The plug-in's file, in place of --config.")] = None,
) -> None:
    """Predict for new rows, one line each.

    Example: moiety model predict --model heart-model --input new.csv --out predictions.csv
    """
    from client_agent.learning.settings import NO_SOURCES
    from client_agent.model.export import load_exported
    from client_agent.model.prediction import features_of, kept_columns, write_predictions

    if out.exists():
        raise ConfigurationError(f"{out} exists; name a new file")
    settings = None if config is None else settings_of(config)
    known, sources = (None, NO_SOURCES) if settings is None else (settings.plugin, settings.sources)
    exported = load_exported(model, plugin or known, sources)
    X = features_of(exported, input_file, site, keep or ())
    kept = kept_columns(exported, input_file, site, keep or (), len(X))
    lines = write_predictions(exported, X, out, kept)
    sys.stdout.write(f"{lines} predictions in {out}\n")


@app.command(name="compare")
def compare_command(
    name: StudyArgument,
    config: ConfigOption,
    draws: Annotated[int, typer.Option(min=0, help="Bootstrap draws.")] = 1000,
    unfinished: UnfinishedOption = False,
    federated: FederatedOption = False,
    best: BestOption = False,
    json_output: JsonOption = False,
) -> None:
    """Compare the study's model with one that this site trains alone.

    Both train for as many rounds, and are scored on this site's test part.

    Example: moiety model compare heart --config settings.toml
    """
    from client_agent.model.site_model import compare, held_model

    settings = settings_of(config)
    held = held_model(settings, name, unfinished=unfinished, which=_which(unfinished, federated, best))
    found = compare(held, settings, draws)
    if json_output:
        sys.stdout.write(found.model_dump_json() + "\n")
    else:
        _show(found)


def _which(unfinished: bool, federated: bool, best: bool) -> Kept | None:
    from client_agent.site.journal import Kept

    if unfinished + federated + best > 1:
        raise ConfigurationError("--unfinished, --federated and --best name different models: give one of them")
    if best:
        return Kept.BEST
    return Kept.FEDERATED if federated else None


def _exported(card: ModelCard, out: Path) -> str:
    from client_agent.model.export import CARD_TEXT

    ended = ", which ended LOCAL_ONLY" if card.local_only else ""
    finished = "" if card.finish is None else f" ({card.finish.text})"
    return (
        f"model {card.model_version} of study {card.study}{ended}{finished} is in {out}; read {out / CARD_TEXT} first\n"
    )


def _show(found: Comparison) -> None:
    from client_agent.learning.scores import shown_value

    caption = (
        f"{found.examples} test examples of this site, {found.model_version} rounds each, 95 % intervals over "
        f"{found.samples} draws"
    )
    if found.finish is not None:
        caption += f"; federated: with the {found.finish.text.removeprefix('the ')}"
    shown = table("metric", "federated", "alone", "difference", title=f"study {found.study}", caption=caption)
    for one in found.scores:
        add_row(shown, one.first.name, *map(shown_value, (one.first, one.second, one.difference)))
    console().print(shown)
