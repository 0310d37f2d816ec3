"""Every setting of servers and agents, with its type and default as the models have them; words are the documents'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel

from client_agent.notify_settings import NotifySettings
from client_agent.settings import AgentSettings, TlsSettings
from harness.reference.markdown import page, table
from harness.reference.study_file import taken
from protocol.errors import ConfigurationError
from protocol.policy.site_policy import SitePolicy
from servers.settings import Limits, ServerSettings

_DOCS: Final = Path(__file__).parents[2] / "docs"


class _Table(NamedTuple):
    title: str
    document: str
    head: str
    model: type[BaseModel]


_TABLES: Final = (
    _Table("A server's settings", "operating.md", "setting", ServerSettings),
    _Table("A server's `[limits]`", "operating.md", "`[limits]`", Limits),
    _Table("An agent's settings", "joining.md", "setting", AgentSettings),
    _Table("An agent's `[policy]`", "joining.md", "`[policy]`", SitePolicy),
    _Table("An agent's `[tls]`", "joining.md", "`[tls]`", TlsSettings),
    _Table("An agent's `[notify]`", "joining.md", "`[notify]`", NotifySettings),
)


def settings_page() -> str:
    """The reference of configuration. Relative paths in a settings file are relative to the file."""
    return page(
        "Configuration",
        "One TOML file for a server, one for an agent; strict: an unknown key stops the start. Environment: "
        "`MOIETY_SERVER_NAME` and `MOIETY_AGENT_NAME` override a setting, two underscores lead into a table "
        "(`MOIETY_SERVER_LIMITS__STALL_S`). What a study's file holds: [study file](../study_file.md).",
        *(_section(one) for one in _TABLES),
    )


def _section(one: _Table) -> str:
    documented = _documented(one)
    rows = [
        (f"`{name}`", taken(field), *documented[name])
        for name, field in one.model.model_fields.items()
        if name in documented
    ]
    return f"## {one.title}\n\n" + table(["setting", "takes", "default", "meaning"], rows)


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
