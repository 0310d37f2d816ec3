"""The pages of reference that are made from code whenever the site is built, by their place in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from harness.reference.commands import commands_page
from harness.reference.errors import errors_page
from harness.reference.http_api import http_api_page
from harness.reference.metrics import metrics_page
from harness.reference.settings import settings_page

GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/http_api.md": http_api_page,
    "reference/metrics.md": metrics_page,
    "reference/errors.md": errors_page,
}
