"""Logs as JSON lines on stderr; callers pass names and numbers, never keys, shares or bodies."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as BoundLogger

from protocol.text import printable_values


def configure(least: int = logging.NOTSET) -> None:
    """Send every log line of this process from this level on to stderr, as one JSON object a line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _printable,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # stderr as it is now, not as it was
    )


def _printable(_: object, __: str, line: EventDict) -> EventDict:
    """Callers and the peer write some of the words in a log."""
    return printable_values(line)


def logger(name: str) -> BoundLogger:
    """A logger that says which part speaks."""
    bound: BoundLogger = structlog.get_logger(part=name)
    return bound
