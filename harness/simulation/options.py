"""A subcommand whose options are the fields of a frozen dataclass, and lists on the command line."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TypeVar, get_type_hints

from protocol.errors import ConfigurationError

T = TypeVar("T")


def command(options: type[T], run: Callable[[T], None]) -> Callable[..., None]:
    """``run`` as a subcommand: its options and their help are the fields of ``options``, its help the docstring."""

    made: Callable[..., T] = options

    def asked(*given: object, **named: object) -> None:
        run(made(*given, **named))

    hints, declared = get_type_hints(options, include_extras=True), signature(options)
    parameters = [parameter.replace(annotation=hints[name]) for name, parameter in declared.parameters.items()]
    vars(asked)["__signature__"] = declared.replace(parameters=parameters)  # what typer reads
    asked.__annotations__ = hints
    asked.__doc__ = options.__doc__
    return asked


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0,1,2`` as numbers. Raises: ConfigurationError"""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--seeds: found {text!r}; give whole numbers separated by commas: 0,1,2") from None
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ConfigurationError(f"--seeds: found {text!r}; every seed once, none below 0")
    return seeds


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """``weight_erosion,local`` as names. Raises: ConfigurationError"""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigurationError(f"{option}: found {text!r}; give names separated by commas, every one once")
    return names
