"""The pages of reference that are made from code whenever the site is built.

Commands are read from their functions, since what typer makes of them changes with its version; settings have their
type and default from the models, their words from the documents.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from client_agent.learning.settings import TrainerSettings
from client_agent.settings import AgentSettings, NotifySettings
from moiety import SUBCOMMANDS
from protocol.errors import CLASS_OF_CODE, ConfigurationError, ErrorCode
from protocol.policy.site_policy import SitePolicy
from servers.api import enrolment, health, mail, peer, rounds, studies
from servers.monitoring import Metrics
from servers.problems import PROBLEMS
from servers.settings import Limits, RayCluster, ServerSettings


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line ends inside of cells are made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def page(title: str, *parts: str) -> str:
    """A whole page; empty parts are left out."""
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def first_paragraph(docstring: str | None) -> str:
    """A docstring's beginning, on one line."""
    return " ".join((docstring or "").strip().split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


_NAMES: Final = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}


@dataclass(frozen=True)
class Command:
    """One command that does something: ``words`` call it (``moiety study create``), ``run`` is its function."""

    words: str
    run: Callable[..., Any]
    about: str


def commands(*names: str) -> Iterator[Command]:
    """Those of these subcommands, or all of them, in the order in which the help names them."""
    for name in names or SUBCOMMANDS:
        place = SUBCOMMANDS[name]
        target = getattr(importlib.import_module(place.module), place.attribute)
        if place.group:
            yield from _below(f"moiety {name}", target)
        else:
            yield Command(f"moiety {name}", target, place.help)


def commands_page() -> str:
    return page(
        "Commands",
        "`moiety COMMAND --help` prints the same. Status 0: done; 1: it ran and the answer is no (a check failed, a "
        "study did not federate); 2: refused, with one line that says what to do; 3: `study watch`, not federated; 70: "
        "an unexpected error, whose traceback is in a file for you alone, which the line names.",
        *(_command(command) for command in commands()),
    )


def _below(words: str, app: typer.Typer) -> Iterator[Command]:
    for one in app.registered_commands:
        if one.callback is not None and not one.hidden:
            name = one.name or one.callback.__name__.replace("_", "-")
            yield Command(f"{words} {name}", one.callback, one.help or inspect.getdoc(one.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _below(f"{words} {group.name}", group.typer_instance)


def _command(command: Command) -> str:
    hints = get_type_hints(command.run, include_extras=True)
    asked = [one for one in inspect.signature(command.run).parameters.values() if hints[one.name] is not typer.Context]
    rows = [_row(one, *get_args(hints[one.name])) for one in asked]
    head = ("", "takes", "default", "meaning")
    return "\n\n".join([f"## {command.words}", command.about, *([table(head, rows)] if rows else [])])


def _row(parameter: inspect.Parameter, kind: Any, told: Any) -> tuple[str, str, str, str]:  # noqa: ANN401  # typer's
    names = [one for one in (told.default, *(told.param_decls or ())) if isinstance(one, str)]
    dashed = f"--{parameter.name.replace('_', '-')}"
    is_option = type(told).__name__ == "OptionInfo"
    shown = ", ".join(f"`{name}`" for name in names or [dashed]) if is_option else f"`{parameter.name.upper()}`"
    return shown, "" if kind is bool else _kind(kind), _default(parameter.default), told.help or ""


def taken(field: FieldInfo) -> str:
    """Return the kind and the limits of a setting, or of a key of a study file."""
    limits = [_limit(one) for one in field.metadata]
    return _kind(field.annotation) + "".join(f", {limit}" for limit in limits if limit)


def _limit(one: object) -> str:
    signs = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    return ", ".join(f"{word} {getattr(one, sign):g}" for sign, word in signs if getattr(one, sign, None) is not None)


def _kind(kind: Any) -> str:  # noqa: ANN401  # any type that an option or a field may have
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not NoneType]
    if origin is Annotated:
        limits = [_limit(limit) for one in inner[1:] for limit in getattr(one, "metadata", [one])]
        found = _kind(inner[0]) + "".join(f", {limit}" for limit in limits if limit)
    elif origin is Literal:
        found = ", ".join(f"`{one}`" for one in inner)
    elif origin in (list, tuple):
        found = f"{_kind(inner[0])}, more than once" if origin is list else f"list of {_kind(inner[0])}"
    elif origin is dict:
        found = "table"
    elif inner:
        found = " or ".join(map(_kind, inner))
    elif issubclass(kind, Enum):
        found = ", ".join(f"`{one.value}`" for one in kind)
    else:
        found = _NAMES.get(kind) or re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
    return found


def _default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, Enum):
        default = default.value
    return (
        ""
        if default in (None, False, "", ()) or default == []
        else f"`{str(default).lower() if default is True else default}`"
    )


_DOCS: Final = Path(__file__).parents[2] / "docs"


class _Table(NamedTuple):
    title: str
    document: str
    head: str
    model: type[BaseModel]


_TABLES: Final = (
    _Table("A server's settings", "operating.md", "setting", ServerSettings),
    _Table("A server's `[limits]`", "operating.md", "`[limits]`", Limits),
    _Table("A server's `[ray]`", "operating.md", "`[ray]`", RayCluster),
    _Table("An agent's settings", "joining.md", "setting", AgentSettings),
    _Table("An agent's `[policy]`", "joining.md", "`[policy]`", SitePolicy),
    _Table("An agent's `[notify]`", "joining.md", "`[notify]`", NotifySettings),
    _Table("An agent's `[trainer]`", "adapters.md", "`[trainer]`", TrainerSettings),
)


def settings_page() -> str:
    """The reference of configuration. Relative paths in a settings file are relative to the file."""
    return page(
        "Configuration",
        "One TOML file for a server, one for an agent; strict: an unknown key stops the start. Environment: "
        "`MOIETY_SERVER_NAME` and `MOIETY_AGENT_NAME` override a setting, two underscores lead into a table "
        "(`MOIETY_SERVER_LIMITS__STALL_S`). What a study's file holds: [study file](../study_file.md).",
        *(_settings(one) for one in _TABLES),
    )


def _settings(one: _Table) -> str:
    documented = _documented(one)
    rows = [
        (f"`{name}`", taken(field), *documented[name], field.description or "")
        for name, field in one.model.model_fields.items()
        if name in documented
    ]
    return f"## {one.title}\n\n" + table(["setting", "takes", "default", "meaning", "why that default"], rows)


def _documented(one: _Table) -> dict[str, tuple[str, str]]:
    text = (_DOCS / one.document).read_text(encoding="utf-8")
    found = re.search(
        rf"^\| {re.escape(one.head)} \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    if found is None:
        raise ConfigurationError(f"{one.document} has no table of {one.head}")
    cells = (row.strip("| ").split(" | ", 2) for row in found[1].splitlines())
    return {name.strip("`"): (default, _from_reference(meaning, one.document)) for name, default, meaning in cells}


def _from_reference(words: str, document: str) -> str:
    """Links lead one folder up, those inside of the document to it."""
    return re.sub(r"\]\((?!https?://)(#?)", lambda found: f"](../{document}#" if found[1] else "](../", words)


_GROUPS = {
    "Studies": studies.router,
    "The roster": studies.roster_router,
    "Rounds": rounds.router,
    "Contributions": rounds.receipts_router,
    "Uploads in parts": rounds.uploads_router,
    "Letters": mail.router,
    "Enrolment": enrolment.router,
    "Between the two servers": peer.router,
    "Is it alive": health.alive,
    "The operator's own port": health.router,
}


def http_api_page() -> str:
    return page(
        "HTTP interface",
        "Agents call servers and server A calls server B; no server ever calls a site. Every request but those of "
        "health and enrolment is signed and sealed: on the wire it is a POST to `/v1/sealed` or `/v1/peer/sealed`, and "
        "the paths here are inside ([protocol](../protocol.md), section 14). A running server describes the same at "
        "`/openapi.json` and `/docs` of its operator's own port. Errors are problem documents (RFC 9457) with a code "
        "of [these](errors.md).",
        *(_routes(title, router) for title, router in _GROUPS.items()),
    )


def _routes(title: str, router: APIRouter) -> str:
    app = FastAPI(title=title)
    app.include_router(router)
    rows = [
        (f"`{method.upper()} {path}`", _about(told), _body(told))
        for path, methods in app.openapi()["paths"].items()
        for method, told in methods.items()
    ]
    return f"## {title}\n\n" + table(["request", "what it does", "body"], rows)


def _about(told: dict[str, Any]) -> str:
    return first_paragraph(told.get("description")) or str(told["summary"])


def _body(told: dict[str, Any]) -> str:
    asked = told.get("requestBody", {})
    kinds = ", ".join(f"`{kind}`" for kind in asked.get("content", {}))
    return ", ".join(part for part in (asked.get("description", ""), kinds) if part)


_OPERATING: Final = Path(__file__).parents[2] / "docs" / "operating.md"


def errors_page() -> str:
    causes = usual_causes(_OPERATING.read_text(encoding="utf-8"))
    rows = [(f"`{code.value}`", _status(code), _meaning(code), causes.get(code.value, "")) for code in ErrorCode]
    return page(
        "Error codes",
        "Every refusal has a code, which stays the same, and a text that says what was found, what is allowed and what "
        "to do. A command that is refused prints both and ends with status 2 (`--json`: as JSON); a server answers "
        "them as a problem document, with the status given here.",
        table(["code", "status", "meaning", "usual cause"], rows),
    )


def usual_causes(operating: str) -> dict[str, str]:
    """Code -> cause, from the table of docs/operating.md, whose rows name one code or several."""
    rows = operating.split("| code | usual cause |")[1].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    told = (row.strip("| ").split(" | ", 1) for row in rows)
    return {code: cause for codes, cause in told for code in re.findall(r"`(\w+)`", codes)}


def _meaning(code: ErrorCode) -> str:
    return first_paragraph(vars(CLASS_OF_CODE[code]).get("__doc__")).replace("``", "`") or PROBLEMS[code].title


def _status(code: ErrorCode) -> str:
    return str(PROBLEMS[code].status)


def metrics_page() -> str:
    rows = [
        (f"`{metric.name}{'_total' if metric.type == 'counter' else ''}`", metric.type, metric.documentation)
        for metric in Metrics().registry.collect()
    ]
    return page(
        "Metrics",
        "`/metrics` of the operator's own port, in Prometheus' text format: traffic and counts of rounds, nothing "
        "about what is shared. Labels, alarms and what to do: [operating](../operating.md#metrics-and-alarms).",
        table(["metric", "kind", "what it counts"], sorted(rows)),
    )


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/http_api.md": http_api_page,
    "reference/metrics.md": metrics_page,
    "reference/errors.md": errors_page,
}
