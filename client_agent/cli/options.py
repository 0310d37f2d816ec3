"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[Path, typer.Option("--config", help="The agent's settings file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")]
NameArgument = Annotated[str, typer.Argument(help="The study's name.")]
