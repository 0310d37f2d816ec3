"""Commands: options from a dataclass, and an end with known errors in one line.

The end of a command: known errors in one line, and of an unexpected one its class alone.

An exception's text may quote a patient's row. It goes, with the traceback, into a file that only this user may read.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Final, NoReturn, TextIO, TypeVar, get_type_hints

from host.files import is_full, why_unreadable
from protocol.errors import ConfigurationError, MoietyError, StorageFull

EXIT_REFUSED: Final = 2
EXIT_UNEXPECTED: Final = 70
EXIT_INTERRUPTED: Final = 130
_UNEXPECTED: Final = "unexpected"
_ROOT: Final = Path(__file__).parents[1]
_PACKAGES: Final = frozenset({"client_agent", "harness", "host", "moiety.py", "protocol", "servers"})
_LIBRARY: Final = sysconfig.get_path("stdlib")
_kept: dict[tuple[object, ...], str] = {}


def end_with(run: Callable[[], object], *, as_json: bool = False) -> NoReturn:
    """Run a command and leave the process with its status: 2 for a known error, 70 for an unexpected one."""
    _prepare_streams()
    try:
        try:
            with _no_other_tracebacks():
                run()
        finally:
            _flush()
    except MoietyError as error:
        sys.exit(_say(error.code.value, error.detail, EXIT_REFUSED, as_json=as_json))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:  # also a cancelled task's, a group, a panic of a library in Rust
        known = known_error(error)
        if known is not None:
            sys.exit(_say(known.code.value, known.detail, EXIT_REFUSED, as_json=as_json))
        sys.exit(_say(_UNEXPECTED, unexpected(error), EXIT_UNEXPECTED, as_json=as_json))
    sys.exit(0)


def known_error(error: BaseException) -> MoietyError | None:
    """Translate what the machine refused, with its remedy: a full disk, or a file that cannot be used. Else None."""
    if not isinstance(error, OSError):
        return None
    named = error.filename if error.filename2 is None else error.filename2
    place = os.fsdecode(named) if isinstance(named, str | bytes) else ""
    if is_full(error):
        return StorageFull(f"no space left{place and f' for {place}'}: free space on its disk, or name another place")
    if place:
        return ConfigurationError(f"{place} cannot be used: {why_unreadable(Path(place), error)}")
    return None


def unexpected(error: BaseException) -> str:
    """One line without the error's text; the traceback is in the file that it names."""
    frames = traceback.extract_tb(error.__traceback__)
    fault = (type(error), *((frame.filename, frame.lineno) for frame in frames))
    if fault not in _kept:  # a daemon that tries again for ever fills no disk
        last = next((frame for frame in reversed(frames) if _is_own(frame.filename)), frames[-1] if frames else None)
        where = f" in {Path(last.filename).name}:{last.lineno}" if last else ""
        _kept[fault] = f"{type(error).__name__}{where}, a fault of this program; {_keep(error)}"
    return _kept[fault]


def _is_own(file: str) -> bool:
    """Tell whether it is one of this program or a plug-in, not of a library that they called."""
    path = Path(file)
    if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _PACKAGES:
        return path != Path(__file__)
    return path.is_absolute() and not path.is_relative_to(_LIBRARY) and "site-packages" not in path.parts


def _keep(error: BaseException) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix="moiety-traceback-", suffix=".txt")  # 0600, new, no link followed
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as refused:
        return f"its traceback could not be kept ({refused.strerror}): report it"
    return f"its traceback is in {name}, for this user alone: report it, but look first whether it quotes data"


@contextmanager
def _no_other_tracebacks() -> Iterator[None]:
    """Threads, callbacks and libraries that log: an error that reaches nobody is one line as well."""
    before = threading.excepthook, sys.unraisablehook, logging.lastResort
    threading.excepthook = lambda hook: _say_unexpected(hook.exc_value)
    sys.unraisablehook = lambda hook: None if isinstance(hook.exc_value, OSError) else _say_unexpected(hook.exc_value)
    logging.lastResort = _OneLine()
    logging.lastResort.setLevel(logging.WARNING)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook, logging.lastResort = before


class _OneLine(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None or record.exc_info[1] is None:
            super().emit(record)
        else:
            _say_unexpected(record.exc_info[1])


def _say_unexpected(error: BaseException | None) -> None:
    if error is not None and not isinstance(error, SystemExit):
        _say(_UNEXPECTED, unexpected(error), EXIT_UNEXPECTED, as_json=False)


def _prepare_streams() -> None:
    """A closed stream must not become the next file that is opened, nor a letter that a terminal lacks an error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
        with suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Raises: ConfigurationError, BrokenPipeError; then nothing more is written when the process ends"""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigurationError(f"standard output cannot be written: {error.strerror}; send it elsewhere") from None


def _say(code: str, detail: str, status: int, *, as_json: bool) -> int:
    with suppress(OSError):
        if as_json:
            sys.stdout.write(json.dumps({"error": code, "detail": detail}) + "\n")
            sys.stdout.flush()
        else:
            red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
            sys.stderr.write(f"{red}error ({code}): {detail}{plain}\n")
    return status


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
