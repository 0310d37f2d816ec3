"""Every command and option, as the command line itself has them.

Read from the functions, since what typer makes of them changes with its version.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from harness.reference.markdown import page, table
from moiety import SUBCOMMANDS

_NAMES: Final = {str: "text", int: "whole number", float: "number", Path: "path"}


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
    """The reference of the command line."""
    return page(
        "Commands",
        "`moiety COMMAND --help` prints the same. Status 0: done; 1: it ran and the answer is no (a check failed, a "
        "study did not federate); 2: refused, with one line that says what to do; 3: `study watch`, not federated; 70: "
        "an unexpected error, whose traceback is in a file for you alone, which the line names.",
        *(_section(command) for command in commands()),
    )


def _below(words: str, app: typer.Typer) -> Iterator[Command]:
    for one in app.registered_commands:
        if one.callback is not None and not one.hidden:
            name = one.name or one.callback.__name__.replace("_", "-")
            yield Command(f"{words} {name}", one.callback, one.help or inspect.getdoc(one.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _below(f"{words} {group.name}", group.typer_instance)


def _section(command: Command) -> str:
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


def _kind(kind: Any) -> str:  # noqa: ANN401  # any type that an option may have
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not type(None)]
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (list, tuple):
        return f"{_kind(inner[0])}, more than once"
    if inner:
        return " or ".join(_kind(one) for one in inner)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    return _NAMES.get(kind, str(getattr(kind, "__name__", kind)).lower())


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
