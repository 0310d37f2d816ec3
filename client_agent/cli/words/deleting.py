"""``moiety agent delete``."""

from __future__ import annotations

import sys
from typing import Final

from client_agent.cli.lines import json_line
from client_agent.settings import AgentSettings
from client_agent.study.asked.deleting import RECEIPT, delete_study

_STAYS: Final = (
    "What stays: the signed study, people's words on it, the audit log, the ledger, and the memory of sums, cohorts "
    "and budget, which protects this site's patients in later studies. Backups and exported models you delete yourself."
)


def delete(settings: AgentSettings, name: str, person: str, reason: str, *, json_output: bool) -> None:
    """Delete, and say where the receipt lies. Raises: ConfigurationError"""
    said: list[str] = []
    signed = delete_study(settings, name, person, reason, say=said.append)
    if json_output:
        json_line(signed.model_dump(mode="json"))
        return
    count, size_bytes = len(signed.message.files), sum(one.size_bytes for one in signed.message.files)
    where = settings.state_dir / "studies" / name / RECEIPT
    sys.stdout.writelines(f"{text}\n" for text in said)
    sys.stdout.write(
        f"study {name}: {count} files of {size_bytes:,} bytes are deleted; the signed receipt is {where}\n{_STAYS}\n"
    )
