"""``moiety study report``: a study as this site knows it, as a page for people or JSON for programs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.options import ConfigOption, JsonOption, NameArgument
from client_agent.report.made import study_report
from client_agent.report.written import report_html
from client_agent.settings import load_settings
from host.placed_files import rewrite

_OUT = "{study}-report.html"


def report(
    name: NameArgument,
    config: ConfigOption,
    out: Annotated[Path | None, typer.Option(help="The file to write; NAME-report.html here.")] = None,
    json_output: JsonOption = False,
) -> None:
    """One page on a study, under way or ended: settings, rounds, metrics, weights, who was left out, costs, the card.

    From this site's own state folder alone: no server is asked. The page loads nothing from elsewhere.
    """
    found = study_report(load_settings(config), name, time.time())
    if json_output:
        sys.stdout.write(found.model_dump_json() + "\n")
        return
    path = out or Path(_OUT.format(study=name))
    rewrite(path, report_html(found))
    sys.stdout.write(f"{path}: study {name}, {found.state}; open it in a browser\n")
