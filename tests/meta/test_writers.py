"""Whatever writes a file that a person keeps writes it whole: through ``host.output_files`` or ``host.files``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN_WAYS = {
    "host/audit_log.py": "appends a line, and takes it back where it had no room",
    "host/files.py": "the way itself",
    "host/folder_lock.py": "locks",
    "host/output_files.py": "the way itself",
    "host/command_line.py": "a traceback, which nobody waits for",
    "servers/store/object_storage.py": "shares, with drafts of its own",
    "servers/store/upload_parts.py": "shares, with receipts of its own",
    "servers/store/files.py": "shares, with drafts of its own",
    "servers/enrolment/register.py": "a lock",
    "client_agent/data/transformation.py": "into a folder that host.output_files fills",
    "client_agent/learning/data.py": "into a folder that host.output_files fills",
    "client_agent/data/rows.py": "into a folder that host.output_files fills",
    "client_agent/model/export.py": "into a folder that host.output_files fills",
    "client_agent/net/ledger.py": "appends lines, and cuts off half a one",
    "client_agent/net/server_client.py": "a download, renamed when whole",
    "client_agent/study/outbox.py": "a lock",
    "client_agent/learning/foreign_trainer.py": "a trainer's log, and what its program reads",
    "client_agent/trainer_programs/round_task.py": "what a trainer's program reads",
}
WRITERS = frozenset({"write_text", "write_bytes", "savez", "savez_compressed", "save_file", "savefig", "to_csv"})


def writes(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open a file to write, or write one at once."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        opens = name == "open" and any(set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts)
        if opens or name in WRITERS:
            yield node


def test_files_are_written_whole() -> None:
    found = {
        str(path.relative_to(ROOT)): [node.lineno for node in writes(ast.parse(path.read_text()))]
        for package in ("host", "servers", "client_agent")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path for path, lines in found.items() if lines} <= set(OWN_WAYS)
    assert all((ROOT / path).exists() for path in OWN_WAYS)
