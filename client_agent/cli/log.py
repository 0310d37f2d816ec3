"""The agent's log, where a command writes one."""

from __future__ import annotations

import logging

import stamina
import structlog

from host.log import configure


def log_to_stderr() -> None:
    """Structured log lines on stderr: standard output belongs to results."""
    configure(logging.INFO)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


def _log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    structlog.get_logger("agent").warning("retry", number=details.retry_num, detail=str(details.caused_by))
