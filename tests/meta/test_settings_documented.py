"""Every setting of servers and agents stands in a table of the document for the people who set it, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from client_agent.learning.settings import TrainerSettings
from client_agent.settings import AgentSettings, NotifySettings
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from servers.settings import Limits, RayCluster, ServerSettings

DOCS = Path(__file__).parents[2] / "docs"
TABLES = [
    ("operating.md", "setting", ServerSettings, {"limits", "ray"}),
    ("operating.md", "`[ray]`", RayCluster, set()),
    ("operating.md", "`[limits]`", Limits, set()),
    ("joining.md", "setting", AgentSettings, {"policy", "notify", "trainer"}),
    ("adapters.md", "`[trainer]`", TrainerSettings, set()),
    ("joining.md", "`[policy]`", SitePolicy, set()),
    ("joining.md", "`[notify]`", NotifySettings, set()),
]
UNITS = {"8 GiB": 2**33, "64 MiB": 2**26, "4 Mi": 2**22}


def rows(document: str, head: str) -> dict[str, str]:
    """Name -> the default column, of the table whose header begins with ``head``."""
    text = (DOCS / document).read_text(encoding="utf-8")
    table = re.search(rf"^\| {re.escape(head)} \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"{document} has no table of {head}"
    cells = [line.strip("|\n ").split(" | ") for line in table[1].splitlines()]
    return {name.strip("`"): default for name, default, *_ in cells}


@pytest.mark.parametrize(("document", "head", "settings", "tables"), TABLES, ids=lambda x: getattr(x, "__name__", None))
def test_every_setting_is_documented(document: str, head: str, settings: type[BaseModel], tables: set[str]) -> None:
    assert set(rows(document, head)) == set(settings.model_fields) - tables


@pytest.mark.parametrize(("document", "head", "settings", "tables"), TABLES, ids=lambda x: getattr(x, "__name__", None))
def test_the_documented_defaults_are_the_codes(
    document: str, head: str, settings: type[BaseModel], tables: set[str]
) -> None:
    documented = rows(document, head)
    for name, field in settings.model_fields.items():
        if name in tables:
            continue
        said = documented[name]
        if field.is_required():
            assert said == "required", name
        elif field.default is None:
            assert not re.fullmatch(r"required|\d.*|`.*`", said), name
        elif isinstance(field.default, bool):
            assert said == f"`{str(field.default).lower()}`", name
        elif isinstance(field.default, int | float):
            assert UNITS.get(said, said) in (field.default, f"{field.default:g}"), name
        elif isinstance(field.default, tuple):
            assert said == (", ".join(f"`{one}`" for one in field.default) or "none"), name
        else:
            assert said == f"`{field.default}`", name


@pytest.mark.parametrize("settings", [row[2] for row in TABLES], ids=lambda one: one.__name__)
def test_every_default_has_its_reason(settings: type[BaseModel]) -> None:
    """One line in the field's description, which the reference shows."""
    tables = {"limits", "ray", "policy", "notify", "trainer"}
    reasons = {n: f.description for n, f in settings.model_fields.items() if not f.is_required() and n not in tables}
    assert not [name for name, reason in reasons.items() if not reason or len(reason) > 90]


def test_everything_that_a_rule_may_open_is_explained_to_sites() -> None:
    text = (DOCS / "joining.md").read_text(encoding="utf-8")
    explained = text.split("| `may_open` has |")[1].split("\n\n")[0]
    assert not [one for one in Needs if one is not Needs.NOTHING and f"| `{one.value}` |" not in explained]
    for rule in (name for name in RuleName if RuleSpec(name=name).needs is not Needs.NOTHING):
        row = next(row for row in explained.splitlines() if row.endswith(f"| `{rule.value}` |"))
        assert row.startswith(f"| `{RuleSpec(name=rule).needs.value}` |")


def test_every_event_of_the_servers_logs_is_explained() -> None:
    text = (DOCS / "operating.md").read_text(encoding="utf-8")
    explained = text.split("| event | meaning | do |")[1].split("| code |")[0]
    sources = (DOCS.parent / "servers").rglob("*.py")
    logged = {
        name for path in sources for name in re.findall(r'_log\.(?:\w+)\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert len(logged) >= 6
    assert not [name for name in logged if f"`{name}`" not in explained]


def test_every_purpose_in_the_ledger_is_explained() -> None:
    text = (DOCS / "joining.md").read_text(encoding="utf-8")
    source = (DOCS.parent / "client_agent" / "net" / "server_client.py").read_text(encoding="utf-8")
    purposes = set(re.findall(r'(?:_EMPTY|body|Body\.of\(\S+\.canonical\(\)\)), "([a-z ]+)"', source))
    assert len(purposes) >= 9
    assert not [purpose for purpose in purposes if f"`{purpose}`" not in text]
