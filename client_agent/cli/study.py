"""``moiety study``, at the requester: studies are created, watched and cancelled.

What a command needs is imported when it runs, mostly ``study_work.py``, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.tables import ConfigOption, JsonLinesOption, JsonOption, StudyArgument, settings_of
from host.files import UMASK

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _study() -> None:
    """Create, watch and cancel studies, at the requester."""
    os.umask(UMASK)


@app.command()
def create(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="What to study.")],
    config: ConfigOption,
    pretrained: Annotated[
        Path | None, typer.Option(help="Begin with this model: float32 values in numpy's format.")
    ] = None,
    site_policy: Annotated[
        list[Path] | None,
        typer.Option(help="Another site's settings file, of which [policy] is read; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check file, data, model and policies only; send and keep nothing.")
    ] = False,
    json_output: JsonLinesOption = False,
) -> None:
    """Create a study: hand it to this site's agent, which runs it.

    Example: moiety study create study.toml --config settings.toml
    """
    from client_agent.cli.study_work import create_from

    create_from(
        study_file, settings_of(config), config, pretrained, site_policy or (), dry_run=dry_run, json_output=json_output
    )


@app.command()
def epsilon(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="A study, or the plan of one.")],
    delta: Annotated[float, typer.Option(min=1e-15, max=0.01, help="Well below one over the number of examples.")],
    samples: Annotated[
        int,
        typer.Option(min=1, help="Training examples of a site. With local SGD not always the fewest spend most."),
    ],
    target: Annotated[
        float | None, typer.Option(min=0.01, help="Print the least noise_multiplier that keeps this epsilon instead.")
    ] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show the epsilon that a study file would spend, with other noise too.

    Nothing is sent or kept.

    Example: moiety study epsilon study.toml --delta 1e-5 --samples 500 --target 4
    """
    from client_agent.cli.study_work import show_epsilon, show_least_noise

    if target is None:
        show_epsilon(study_file, delta, samples, json_output=json_output)
    else:
        show_least_noise(study_file, delta, samples, target, json_output=json_output)


@app.command()
def watch(name: StudyArgument, config: ConfigOption, json_output: JsonLinesOption = False) -> None:
    """Watch a study until it ends: rounds as they are recorded, and states.

    Ends with status 3 when the study did not end as asked: failed, or trained alone.

    Example: moiety study watch heart --config settings.toml
    """
    from client_agent.cli.watch import follow, log_to_stderr
    from client_agent.page.study_state import EXIT_NOT_AS_ASKED

    settings = settings_of(config)
    log_to_stderr()
    if not follow(settings, name, json_output=json_output):
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def report(
    name: StudyArgument,
    config: ConfigOption,
    out: Annotated[Path | None, typer.Option(help="The file to write; STUDY-report.html here.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Write one page on a study: settings, rounds, weights, costs, card.

    It is made from this site's state folder alone, and loads nothing from elsewhere.

    Example: moiety study report heart --config settings.toml
    """
    from client_agent.page.report import report_html, study_report
    from host.output_files import rewrite

    found = study_report(settings_of(config), name, time.time())
    if json_output:
        sys.stdout.write(found.model_dump_json() + "\n")
        return
    path = out or Path(f"{name}-report.html")
    rewrite(path, report_html(found))
    sys.stdout.write(f"{path}: study {name}, {found.state}; open it in a browser\n")


@app.command()
def summary(
    name: StudyArgument,
    config: ConfigOption,
    json_output: JsonLinesOption = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Comma-separated lines on standard output.")] = False,
    scaling: Annotated[
        Path | None, typer.Option(help="Write pooled means and SDs here, for 'moiety data prepare --scaling'.")
    ] = None,
) -> None:
    """Show table one over all sites, from their summed summaries.

    At the requester, or at any site that took part.

    Example: moiety study summary heart --config settings.toml --scaling scaling.json
    """
    from client_agent.cli.study_work import show_summary

    state_dir = settings_of(config).state_dir
    show_summary(state_dir, name, json_output=json_output, csv_output=csv_output, scaling=scaling)


@app.command()
def ranking(
    config: ConfigOption,
    name: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The study's name; without it, all that were ranked.")
    ] = None,
    json_output: JsonLinesOption = False,
) -> None:
    """Show the sites by transfer loss: whose data resemble the requester's.

    Example: moiety study ranking heart --config settings.toml
    """
    from client_agent.cli.study_work import show_rankings

    show_rankings(settings_of(config).state_dir, name, json_output=json_output)


@app.command()
def verify(
    transcripts: Annotated[
        list[Path], typer.Argument(metavar="TRANSCRIPT...", help="Folders of a study's transcripts, or single ones.")
    ],
    roster: Annotated[Path, typer.Option(help="The signed roster of the study's federation.")],
    json_output: JsonLinesOption = False,
) -> None:
    """Verify signed messages that sites kept, and name who deviated.

    Ends with status 3 where anybody deviated.

    Example: moiety study verify state/studies/heart/transcripts --roster roster.toml
    """
    from client_agent.cli.study_work import show_deviations
    from client_agent.page.study_state import EXIT_NOT_AS_ASKED

    if show_deviations(transcripts, roster, json_output=json_output):
        raise typer.Exit(EXIT_NOT_AS_ASKED)


@app.command()
def cancel(
    name: StudyArgument,
    config: ConfigOption,
    reason: Annotated[str, typer.Option(help="Shown to every site.")],
    json_output: JsonLinesOption = False,
) -> None:
    """Cancel a study at both servers, now.

    Example: moiety study cancel heart --reason "wrong outcome" --config settings.toml
    """
    from client_agent.cli.study_work import cancel_study

    cancel_study(settings_of(config), name, reason, json_output=json_output)
