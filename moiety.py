"""The one entry point, ``moiety``: each subcommand is loaded only when it is asked for.

A server therefore needs neither torch nor the harness, an agent needs neither FastAPI nor the harness. In Python,
``from moiety import Case, Results, Study, load_results, simulate`` loads the harness when one of them is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from host.command_line import end_with
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from harness.api import Case, RayCluster, Results, Study, load_results, simulate
    from host.doctor import Report

__all__ = ["Case", "RayCluster", "Results", "Study", "build", "load_results", "main", "simulate"]
_SETTINGS: Final = "settings.toml"
_IN_A_CONTAINER: Final = Path("/etc/moiety") / _SETTINGS
_API: Final = frozenset({"Case", "RayCluster", "Results", "Study", "load_results", "simulate"})


_EVERYBODY: Final = "Sites and operators"
_SITE: Final = "Site"
_OPERATOR: Final = "Operator"
_RESEARCHER: Final = "Researcher"
_DEVELOPER: Final = "Developer"
PANELS: Final = (_EVERYBODY, _SITE, _OPERATOR, _RESEARCHER, _DEVELOPER)
"""Sections of ``moiety --help``, by the people who use the commands."""


@dataclass(frozen=True)
class Subcommand:
    """Where a subcommand lives. ``group`` says whether ``attribute`` is a typer app or one function."""

    module: str
    attribute: str
    help: str
    panel: str
    group: bool = True


SUBCOMMANDS: Final[dict[str, Subcommand]] = {
    "doctor": Subcommand(
        "moiety", "doctor", "Check everything that a server or a site needs.", _EVERYBODY, group=False
    ),
    "audit": Subcommand("host.audit_command", "app", "Read and verify an audit log.", _EVERYBODY),
    "roster": Subcommand("client_agent.cli.roster", "app", "Show the roster, and change it by hand.", _EVERYBODY),
    "licences": Subcommand(
        "host.licences", "licences", "List installed packages with their licences.", _EVERYBODY, group=False
    ),
    "site": Subcommand("client_agent.cli.site", "app", "Join a federation, or found one.", _SITE),
    "data": Subcommand("client_agent.cli.data", "app", "Check a table, and make the site's data folder.", _SITE),
    "agent": Subcommand("client_agent.cli.agent", "app", "Run the site's agent, and decide on studies.", _SITE),
    "server": Subcommand("servers.cli", "app", "Run server A or server B.", _OPERATOR),
    "study": Subcommand("client_agent.cli.study", "app", "Create, watch and cancel studies.", _RESEARCHER),
    "model": Subcommand("client_agent.cli.model", "app", "Export a study's model, and predict with it.", _RESEARCHER),
    "demo": Subcommand(
        "harness.cli", "demo", "Run two servers and five sites here, and report.", _RESEARCHER, group=False
    ),
    "simulate": Subcommand("harness.simulate.cli", "app", "Run studies in one process.", _RESEARCHER),
    "attack": Subcommand("harness.attack.cli", "app", "Attack a study in this process.", _RESEARCHER),
    "lab bench": Subcommand("harness.bench.cli", "app", "Measure what a round costs.", _DEVELOPER),
    "lab faults": Subcommand("harness.cli", "faults", "Run studies under seeded faults.", _DEVELOPER, group=False),
    "lab results": Subcommand(
        "harness.cli", "results", "Make the tables and plots of docs/results.", _DEVELOPER, group=False
    ),
}
"""Commands by the words that call them, in the order of the help."""

GROUPS: Final = {"lab": "Measure and test Moiety itself."}
"""First words that several subcommands share, with their help."""

MOVED: Final = {
    "bench": "lab bench",
    "faults": "lab faults",
    "results": "lab results",
    "lab bench report": "lab results --only benchmarks",
    "lab bench tags": "lab bench variant tags",
    "lab bench ring": "lab bench variant ring",
    "keys": "roster",
    "keys new": "roster new-keys",
    "keys show": "roster show",
    "site fingerprint": "site status",
    "site admissions": "site status",
    "data check": "data prepare --dry-run",
    "budget": "agent status",
    "budget show": "agent status",
    "budget reset": "agent accept-rollback",
    "agent studies": "agent show",
    "agent budget": "agent status",
    "agent begin-budget": "agent accept-rollback",
    "agent forget-memory": "agent accept-rollback",
    "agent leave": "agent decline",
    "agent rewards": "study report",
    "server restored": "server accept-rollback",
    "server invitations": "server admissions",
    "server card": "server status",
    "server withdraw": "server invite --withdraw",
    "study check": "study create --dry-run",
    "study noise": "study epsilon --target",
}
"""Old names and the command that does the same now; somebody who types one is told, and nothing runs."""

_EXTRA_OF_MODULE: Final = {
    "alembic": "server",
    "fastapi": "server",
    "httptools": "server",
    "psycopg": "postgres",
    "prometheus_client": "server",
    "sqlalchemy": "server",
    "uvicorn": "server",
    "jinja2": "page",
    "markupsafe": "page",
    "pyarrow": "agent",
    "safetensors": "agent",
    "torch": "agent",
    "monai": "models",
    "matplotlib": "harness",
    "pandas": "harness",
    "psutil": "harness",
    "sklearn": "harness",
    "trustme": "harness",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attributes are what they are
    """What a researcher imports; PEP 562. Raises: ImportError that names the extra to install"""
    if name not in _API:
        raise AttributeError(f"module 'moiety' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("harness.api"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_MODULE.get((error.name or "").split(".")[0], "harness")
        raise ImportError(
            f"moiety.{name} needs {error.name}; install it with: pip install 'moiety[{extra}]'"
        ) from error


class _ByPanel(TyperGroup):
    """The commands in ``moiety --help`` stand in sections, by who uses them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # typer keeps a click of its own
        panels = {name.split()[0]: command.panel for name, command in SUBCOMMANDS.items()}
        for panel in PANELS:
            named = [name for name, one in panels.items() if one == panel]
            with formatter.section(panel):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(formatter.width)) for name in named])


def build(chosen: str | None) -> typer.Typer:
    """Return the command line with only ``chosen``, a key of SUBCOMMANDS, loaded.

    The others are there by name and help text.
    """
    root = typer.Typer(
        name="moiety",
        help="Federated learning through two servers that see nothing.",
        cls=_ByPanel,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )
    root.callback()(_root)
    groups: dict[str, typer.Typer] = {}
    for words, command in SUBCOMMANDS.items():
        *first, name = words.split()
        if first and first[0] not in groups:
            groups[first[0]] = typer.Typer(no_args_is_help=True)
            root.add_typer(groups[first[0]], name=first[0], help=GROUPS[first[0]])
        parent = groups[first[0]] if first else root
        target: Any = _load(command) if words == chosen else None
        if command.group:
            parent.add_typer(target or typer.Typer(), name=name, help=command.help)
        else:
            parent.command(name, help=None if target else command.help)(target or _not_loaded)
    return root


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; an error ends it with one line on stderr (or JSON): code 2, or 70 for an unexpected one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end_with(lambda: _run(given), as_json="--json" in given)


def _run(given: list[str]) -> None:
    words = [word for word in given if not word.startswith("-")]
    called = [" ".join(words[:count]) for count in (3, 2, 1)]
    for old in called:
        if old in MOVED:
            raise ConfigurationError(f"there is no 'moiety {old}' any more: use 'moiety {MOVED[old]}'")
    chosen = next((one for one in called if one in SUBCOMMANDS), None)
    _naming_the_extra(lambda: build(chosen)(args=given, prog_name="moiety"), chosen)


def _show_version(wanted: bool) -> None:
    if wanted:
        from protocol.parameters import PROTOCOL_VERSION

        sys.stdout.write(f"moiety {importlib.metadata.version('moiety')}, protocol {PROTOCOL_VERSION}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Federated learning through two servers that see nothing."""


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings file of a server or of an agent; else what is here.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="JSON on standard output, a line for each.")] = False,
) -> None:
    """Check everything that a server or a site needs.

    Each failure says what to do; status 1 when something failed. Without --config: settings.toml here, or
    /etc/moiety/settings.toml. What they name is opened and run, so a file that others may write counts only with
    --config.

    Example: moiety doctor --config settings.toml
    """
    from host.doctor import show

    if not show(_examined(config or _configured_here()), json_output=json_output):
        raise typer.Exit(1)


def _examined(config: Path) -> Report:
    """A server's settings have the key 'side', an agent's do not."""
    from host.settings import read_text
    from protocol.configuration import parse_toml

    of_server = "side" in parse_toml(read_text(config), str(config))
    place = ("servers.doctor", "examine_server") if of_server else ("client_agent.doctor", "examine_site")
    report: Report = getattr(importlib.import_module(place[0]), place[1])(config)
    return report


def _configured_here() -> Path:
    """Raises: ConfigurationError, where nothing is, or only what somebody else may have written"""
    found = next((path for path in (Path(_SETTINGS), _IN_A_CONTAINER) if path.exists()), None)
    if found is None:
        raise ConfigurationError(
            f"no {_SETTINGS} in {Path.cwd()} or at {_IN_A_CONTAINER}: name a server's or an agent's settings with "
            "--config, or make them with 'moiety server init' or 'moiety site join'"
        )
    for path in (found, found.absolute().parent) if found != _IN_A_CONTAINER else ():
        seen = path.lstat()
        if not stat.S_ISLNK(seen.st_mode) and seen.st_uid in (0, os.geteuid()) and not seen.st_mode & stat.S_IWOTH:
            continue
        raise ConfigurationError(
            f"{found.absolute()} may be somebody else's, since {path} is a link, another user's, or open to all, and "
            "what settings name is run: look at it, then name it with --config"
        )
    return found


def _not_loaded() -> None:
    raise ConfigurationError("this subcommand is not loaded; name it first: moiety SUBCOMMAND ...")


def _load(command: Subcommand) -> Callable[..., Any]:
    target: Callable[..., Any] = getattr(importlib.import_module(command.module), command.attribute)
    return target


def _naming_the_extra(run: Callable[[], Any], chosen: str | None) -> None:
    """Run; a package that is not installed becomes an error that names the extra to install."""
    try:
        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        extra = _EXTRA_OF_MODULE.get(missing)
        if extra is None:
            raise
        raise ConfigurationError(
            f"'moiety {chosen}' needs the Python package {missing!r}, which is not installed; "
            f"install it with: pip install 'moiety[{extra}]'"
        ) from None


if __name__ == "__main__":
    main()
