"""Faults of code that is not ours, a plug-in's or a library's, as one line: whose code, which step, which layer."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

from protocol.errors import ConfigurationError, MoietyError

_SOURCE: Final = "_moiety_source"
_MOST_CHARACTERS: Final = 300


def came_from(model: nn.Module, source: str) -> None:
    """Note whose code the model runs; a built-in model has no such note, and its faults are ours."""
    setattr(model, _SOURCE, source)


def source_of(model: nn.Module) -> str:
    """The beginning of an error about the model: whose code it runs, nothing for a built-in one."""
    source: str | None = getattr(model, _SOURCE, None)
    return "" if source is None else f"{source}: "


@contextmanager
def foreign_code(source: str, step: str, model: nn.Module | None = None) -> Iterator[None]:
    """Turn whatever is raised inside into one line. Raises: ConfigurationError"""
    try:
        yield
    except MoietyError:
        raise
    except (Exception, SystemExit) as error:
        line, layer = _line(source, error), _layer(model, error)
        raise ConfigurationError(
            f"{source}{line}: {step} fails{layer}: {words_of(error)}; change the model, the plug-in or the data"
        ) from error


@contextmanager
def model_code(model: nn.Module, step: str) -> Iterator[None]:
    """As :func:`foreign_code`, of a model that says where it came from. Raises: ConfigurationError"""
    source: str | None = getattr(model, _SOURCE, None)
    if source is None:
        yield
        return
    with foreign_code(source, step, model):
        yield


def words_of(error: BaseException) -> str:
    """The error's class and the first line of its text."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    cut = first if len(first) <= _MOST_CHARACTERS else f"{first[:_MOST_CHARACTERS]} ..."
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


def _line(source: str, error: BaseException) -> str:
    """The last line of the source's own file that ran, where the source is a file."""
    ran = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in ran if source.endswith(f" {frame.f_code.co_filename}")]
    return f", line {lines[-1]}" if lines else ""


def _layer(model: nn.Module | None, error: BaseException) -> str:
    """The innermost layer of the model that was being computed."""
    if model is None:
        return ""
    names = {id(module): name for name, module in model.named_modules() if name}
    found = [names.get(id(frame.f_locals.get("self"))) for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [name for name in found if name]
    return f" in layer {layers[-1]!r}" if layers else ""
