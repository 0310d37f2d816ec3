"""A subcommand whose options are the fields of a frozen dataclass."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TypeVar, get_type_hints

T = TypeVar("T")


def command(options: type[T], run: Callable[[T], None]) -> Callable[..., None]:
    """``run`` as a subcommand of its name: its options are the fields of ``options``, its help their docstring."""

    made: Callable[..., T] = options

    def asked(*given: object, **named: object) -> None:
        run(made(*given, **named))

    hints, declared = get_type_hints(options, include_extras=True), signature(options)
    parameters = [parameter.replace(annotation=hints[name]) for name, parameter in declared.parameters.items()]
    vars(asked)["__signature__"] = declared.replace(parameters=parameters)  # what typer reads
    asked.__annotations__ = hints
    asked.__name__ = run.__name__.lstrip("_")
    asked.__doc__ = options.__doc__
    return asked
