"""``moiety agent ledger``: how many bytes left and came, by server and purpose, over all of a ledger's files."""

from __future__ import annotations

from pathlib import Path

from client_agent.cli.lines import json_line
from client_agent.cli.tables import add_row, console, table
from client_agent.network.ledger import LedgerEntry, Totals, read_ledger, without_number
from host.settings import require_begun


def show_ledger(state_dir: Path, *, json_output: bool) -> None:
    """Nothing is left out: the last line is the sum of all lines, to be compared with a firewall's.

    Raises: ConfigurationError, when there is no such folder
    """
    require_begun("state_dir", state_dir, "'moiety agent run'")
    found = by_purpose(read_ledger(state_dir / "ledger.jsonl"))
    if json_output:
        for (server, purpose), totals in found.items():
            json_line({"server": server, "purpose": purpose, **vars(totals)})
        return
    shown = table("server", "purpose", "exchanges", "bytes sent", "bytes received")
    for (server, purpose), totals in found.items():
        numbers = (totals.entries, totals.socket_sent_bytes, totals.socket_received_bytes)
        add_row(shown, server, purpose, *(f"{number:,}" for number in numbers))
    console().print(shown)
    sent = sum(totals.socket_sent_bytes for totals in found.values())
    received = sum(totals.socket_received_bytes for totals in found.values())
    console().print(f"{sent:,} bytes sent, {received:,} received, TLS included")


def by_purpose(entries: tuple[LedgerEntry, ...]) -> dict[tuple[str, str], Totals]:
    """Sums for each server and purpose, letters of all rounds together, in alphabetical order."""
    found: dict[tuple[str, str], Totals] = {}
    for entry in entries:
        key = (entry.server, without_number(entry.purpose))
        found[key] = found.get(key, Totals()).with_entry(entry)
    return dict(sorted(found.items()))
